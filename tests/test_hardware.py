"""The device table against the figures it must hold, and the messages for wrong files and wrong requests."""

import dataclasses
import doctest
import re
import subprocess
import sys

import pytest

from rooflab import hardware
from rooflab.hardware import Derivation, Device, HardwareError, Memory, Peak, device, devices, load_devices

# id: bf16, fp8 and fp4 dense tensor peaks in TFLOP/s, bandwidth in TB/s, bf16 and fp8 ridges rounded to 1 FLOP/byte.
GOLDEN = {
    "a100-40gb-sxm": (312, None, None, 1.555, 201, None),
    "a100-40gb-pcie": (312, None, None, 1.555, 201, None),
    "a100-80gb-pcie": (312, None, None, 1.935, 161, None),
    "a100-80gb-sxm": (312, None, None, 2.039, 153, None),
    "h100-sxm": (989.4, 1978.9, None, 3.35, 295, 591),
    "h100-pcie": (756, 1513, None, 2.0, 378, 756),
    "h200-sxm": (989, 1979, None, 4.8, 206, 412),
    "l4": (121, 242.5, None, 0.300, 403, 808),
    "l40s": (362.05, 733, None, 0.864, 419, 848),
    "rtx-4090": (165.2, 330.3, None, 1.008, 164, 328),
    "rtx-5090": (209.5, 419, 1676, 1.792, 117, 234),
    "b200-hgx": (2250, 4500, 9000, 7.7, 292, 584),
    "gb200": (2450, 4900, 9800, 8.0, 306, 612),
    "b300-hgx": (2250, 4500, 13500, 7.7, 292, 584),
    "gb300": (2450, 4900, 14700, 8.0, 306, 612),
    "mi300x": (1307.4, 2614.9, None, 5.3, 247, 493),
    "mi355x": (2516.6, 5033, 10066, 8.0, 315, 629),
    "tpu-v5e": (197, None, None, 0.819, 241, None),
    "tpu-v5p": (459, 459, None, 2.765, 166, 166),
    "tpu-v6e": (918, 918, None, 1.638, 560, 560),
    "tpu7x": (2307, 4614, None, 7.38, 313, 625),
}
CAPACITY_GB = {
    "a100-40gb-sxm": 40, "a100-40gb-pcie": 40, "a100-80gb-pcie": 80, "a100-80gb-sxm": 80, "h100-sxm": 80,
    "h100-pcie": 80, "h200-sxm": 141, "l4": 24, "l40s": 48, "rtx-4090": 24, "rtx-5090": 32, "b200-hgx": 180,
    "gb200": 186, "b300-hgx": 270, "gb300": 279, "mi300x": 192, "mi355x": 288, "tpu-v5e": 16,
    "tpu-v5p": 95 * 1.073741824, "tpu-v6e": 32, "tpu7x": 192 * 1.073741824,
}  # fmt: skip
FP32_VECTOR_TFLOP_PER_S = {
    "a100-40gb-sxm": 19.5, "a100-40gb-pcie": 19.5, "a100-80gb-pcie": 19.5, "a100-80gb-sxm": 19.5, "h100-sxm": 66.9,
    "h100-pcie": 51, "h200-sxm": 66.9, "l4": 30.3, "l40s": 91.6, "rtx-4090": 82.6, "rtx-5090": 104.8, "b200-hgx": 75,
    "gb200": 80, "b300-hgx": 75, "gb300": 80, "mi300x": 163.4, "mi355x": 157.3,
}  # fmt: skip
# The vendor itself states another ratio than sparse = 2 x dense.
SPARSE_RATIO = {("gb200", "bf16"): 5000 / 2450, ("gb200", "fp16"): 5000 / 2450, ("gb200", "fp8"): 10000 / 4900}
SPARSE_RATIO |= {("gb200", "fp4"): 20000 / 9800, ("b300-hgx", "fp4"): 4 / 3}
FP8_AT_BF16_RATE = {"tpu-v5p", "tpu-v6e"}
# Printed 362.05 beside 733 sparse; the clock product is 366.4.
DERIVED_OFF = {("l40s", "bf16"): 0.0125}

BUILT_IN = list(devices().values())
PEAKS = [(gpu, peak) for gpu in BUILT_IN for peak in gpu.peaks]
ROWS = [(gpu, row) for gpu in BUILT_IN for row in (*gpu.peaks, *gpu.memories)]


def close(value, expected, tolerance=1e-9):
    return value == pytest.approx(expected, rel=tolerance, abs=0)


def test_the_table_holds_exactly_the_devices_listed_here():
    assert set(devices()) == set(GOLDEN), "GOLDEN of tests/test_hardware.py wants each device, with figures as printed"
    assert set(devices()) == set(CAPACITY_GB), "CAPACITY_GB of tests/test_hardware.py wants each device"


@pytest.mark.parametrize("id", GOLDEN)
def test_figures_as_stated(id):
    bf16, fp8, fp4, tb_per_s, ridge_bf16, ridge_fp8 = GOLDEN[id]
    gpu = device(id)
    for dtype, tflop_per_s in (("bf16", bf16), ("fp8", fp8), ("fp4", fp4)):
        assert (dtype in gpu.dtypes("tensor")) == (tflop_per_s is not None)
        if tflop_per_s is not None:
            assert close(gpu.peak_flop_per_s(dtype), tflop_per_s * 1e12)
            assert gpu.peak(dtype).unit == "tensor"
    assert close(gpu.bytes_per_s(), tb_per_s * 1e12)
    assert close(gpu.capacity_bytes(), CAPACITY_GB[id] * 1e9)
    # Printed ridges are rounded, so a half may have gone either way.
    assert abs(gpu.ridge_flop_per_byte("bf16") - ridge_bf16) <= 0.5
    if ridge_fp8 is not None:
        assert abs(gpu.ridge_flop_per_byte("fp8") - ridge_fp8) <= 0.5


def test_fp32_is_a_vector_peak():
    with_fp32 = {gpu.id for gpu in BUILT_IN if "fp32" in gpu.dtypes()}
    wanted = "FP32_VECTOR_TFLOP_PER_S of tests/test_hardware.py wants each device with an fp32 peak, and no other"
    assert with_fp32 == set(FP32_VECTOR_TFLOP_PER_S), wanted
    for id, tflop_per_s in FP32_VECTOR_TFLOP_PER_S.items():
        assert close(device(id).peak_flop_per_s("fp32"), tflop_per_s * 1e12)
        assert device(id).peak("fp32").unit == "vector"


def test_fp16_has_the_bf16_peak_on_every_gpu():
    for gpu in BUILT_IN:
        if gpu.vendor != "Google":
            assert gpu.peak_flop_per_s("fp16") == gpu.peak_flop_per_s("bf16")


def test_geforce_doubles_its_rate_with_fp16_accumulation():
    for id in ("rtx-4090", "rtx-5090"):
        for dtype in ("fp16", "fp8"):
            half_rate, full_rate = (device(id).peak_flop_per_s(dtype, accumulate=a) for a in ("fp32", "fp16"))
            assert close(full_rate / half_rate, 2, 0.001)


@pytest.mark.parametrize(
    "id, dtype, tflop_per_s",
    [("a100-80gb-sxm", "bf16", 624), ("h100-sxm", "bf16", 1978.9), ("h100-sxm", "fp8", 3957.8), ("l4", "fp8", 485)]
    + [("h100-pcie", "bf16", 1513), ("h200-sxm", "bf16", 1979), ("h200-sxm", "fp8", 3958), ("l40s", "bf16", 733)]
    + [("l40s", "fp8", 1466), ("l4", "bf16", 242), ("rtx-5090", "fp4", 3352), ("gb200", "bf16", 5000)]
    + [("b200-hgx", "fp4", 18000), ("b300-hgx", "fp4", 18000)],
)
def test_sparse_figures_as_printed(id, dtype, tflop_per_s):
    assert close(device(id).peak_flop_per_s(dtype, sparsity="2:4"), tflop_per_s * 1e12)


def test_integer_peaks_accumulate_in_int32():
    for id, tflop_per_s in (("tpu-v5e", 393), ("tpu-v5p", 918), ("tpu-v6e", 1836), ("a100-80gb-sxm", 624)):
        assert close(device(id).peak_flop_per_s("int8"), tflop_per_s * 1e12)
        assert device(id).peak_flop_per_s("int8", accumulate="int32") == device(id).peak_flop_per_s("int8")


def test_sparse_is_twice_dense_unless_the_vendor_says_otherwise():
    checked = set()
    for gpu, peak in PEAKS:
        for dtype in peak.dtypes if peak.sparsity == "2:4" else ():
            ratio = peak.flop_per_s / gpu.peak_flop_per_s(dtype, peak.unit, accumulate=peak.accumulate)
            exception = SPARSE_RATIO.get((gpu.id, dtype))
            assert close(ratio, exception, 1e-6) if exception else close(ratio, 2, 0.015), (gpu.id, dtype, ratio)
            checked.add((gpu.id, dtype))
    assert len(checked) > 25 and set(SPARSE_RATIO) <= checked


def test_clock_products_give_the_stated_peaks():
    derived = [(gpu, peak) for gpu, peak in PEAKS if peak.derive]
    assert len(derived) > 20
    for gpu, peak in derived:
        tolerance = DERIVED_OFF.get((gpu.id, peak.dtypes[0]), 0.01)
        assert close(peak.derive.flop_per_s, peak.flop_per_s, tolerance), (gpu.id, peak.dtypes)


def test_fp8_is_twice_bf16_unless_the_vendor_says_otherwise():
    with_fp8 = [gpu for gpu in BUILT_IN if "fp8" in gpu.dtypes()]
    assert len(with_fp8) == sum(row[1] is not None for row in GOLDEN.values())
    for gpu in with_fp8:
        ratio = gpu.peak_flop_per_s("fp8") / gpu.peak_flop_per_s("bf16")
        assert close(ratio, 1 if gpu.id in FP8_AT_BF16_RATE else 2, 0.015), (gpu.id, ratio)


def test_ranges():
    for gpu, peak in PEAKS:
        low = 1e12 if peak.unit == "tensor" else 1e9
        assert low <= peak.flop_per_s <= 2e16, (gpu.id, peak)
    for gpu in BUILT_IN:
        assert 1e10 < gpu.bytes_per_s() < 2e13
        assert 1e10 <= gpu.capacity_bytes() < 1e12
        for dtype in gpu.dtypes():
            assert 1 < gpu.ridge_flop_per_byte(dtype) < 2000, (gpu.id, dtype)


def test_l2_is_smaller_than_hbm():
    with_l2 = [gpu for gpu in BUILT_IN if any(row.level == "l2" for row in gpu.memories)]
    assert {"h100-sxm", "h200-sxm"} <= {gpu.id for gpu in with_l2}
    for gpu in with_l2:
        assert 1e7 < gpu.capacity_bytes("l2") < gpu.capacity_bytes() / 100


def test_titles_are_unique_and_complete():
    assert len({gpu.title for gpu in BUILT_IN}) == len(BUILT_IN)
    for gpu in BUILT_IN:
        assert gpu.title.startswith(gpu.vendor) and gpu.vendor in {"NVIDIA", "AMD", "Google"} and gpu.architecture


def test_every_row_says_where_it_comes_from_and_how_well():
    for gpu, row in ROWS:
        assert len(row.source) > 10, (gpu.id, row)
        # A row that is arithmetic has the plain day on which it was done.
        dated = re.search(r"(^|\bread )\d{4}-\d\d-\d\d$", row.date)
        assert dated, f"{gpu.id}: {row.date!r} does not end in the day on which you read it, as in 'read 2026-11-29'"
        assert row.strength in {"primary", "transcription", "derived"}, (gpu.id, row)


def test_names_that_drivers_report_are_unique():
    names = [name for gpu in BUILT_IN for name in gpu.reported_as]
    assert len(names) == len(set(names)) > 10
    assert device("h200-sxm").reported_as == ("NVIDIA H200",)


# ------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "ask, parts",
    [
        (lambda: device("h100-smx"), ["'h100-smx'", "did you mean 'h100-sxm'?", "tpu7x"]),
        (lambda: device("H100-SXM"), ["'H100-SXM'", "did you mean 'h100-sxm'?"]),
        (lambda: device("zzz"), ["'zzz'", "one of: a100-40gb-sxm"]),
        (lambda: device("l4").peak_flop_per_s("fp4"), ["l4", "'fp4'", "it has: bf16, fp16, fp8, fp32"]),
        (lambda: device("l4").peak_flop_per_s("fp32", "tensor"), ["l4", "'fp32'", "tensor", "vector, dense"]),
        (lambda: device("l4").peak_flop_per_s("fp8", sparsity="4:8"), ["l4", "4:8", "tensor, 2:4"]),
        (lambda: device("l4").peak_flop_per_s("fp8", accumulate="fp16"), ["l4", "fp16 accumulate", "fp32 accumulate"]),
        (lambda: device("h200-sxm").bytes_per_s("l2"), ["h200-sxm", "bytes_per_s", "'l2'", "it has: hbm"]),
        (lambda: device("l4").capacity_bytes("l1"), ["l4", "capacity_bytes", "'l1'", "it has: hbm"]),
    ],
)
def test_a_wrong_request_names_the_value_and_the_choices(ask, parts):
    with pytest.raises(HardwareError) as caught:
        ask()
    message = str(caught.value)
    assert "\n" not in message and [part for part in parts if part not in message] == [], message


def test_the_table_cannot_be_changed_by_a_reader():
    with pytest.raises(TypeError):
        devices()["mine"] = device("l4")
    assert devices() is devices()
    with pytest.raises(dataclasses.FrozenInstanceError):
        device("l4").title = "mine"


# ---------------------------------------------------------------------------------------------------------- files

PEAK = '{dtypes = ["bf16"], unit = "tensor", sparsity = "dense", flop_per_s = "900 TFLOP/s"}'
MEMORY = '{level = "hbm", bytes_per_s = "3 TB/s", capacity_bytes = "80 GB"}'
GOOD = f"""
[h900]
title = "H900"
source = "a datasheet, page 2"
date = 2026-11-29
peak = [{PEAK}]
memory = [{MEMORY}]
"""


def test_a_users_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(GOOD)
    (gpu,) = load_devices(path).values()
    assert (gpu.id, gpu.title, gpu.dtypes()) == ("h900", "H900", ("bf16",))
    assert close(gpu.ridge_flop_per_byte("bf16"), 300)
    assert gpu.peak("bf16").source == gpu.memories[0].source == "a datasheet, page 2"
    assert gpu.peak("bf16").date == "2026-11-29" and gpu.peak("bf16").strength == "unstated"


def test_a_row_may_state_its_own_source(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(GOOD.replace('level = "hbm",', 'level = "hbm", source = "a page", date = "2025",'))
    gpu = load_devices(str(path))["h900"]
    assert (gpu.memories[0].source, gpu.memories[0].date) == ("a page", "2025")
    assert gpu.peak("bf16").source == "a datasheet, page 2"


DERIVE = 'derive = {units = 132, flop_per_clock_per_unit = 4096, clock_hz = "1.83 GHz"}'


def swap(old, new, text=GOOD):
    assert old in text
    return text.replace(old, new)


def peak(new, old='flop_per_s = "900 TFLOP/s"'):
    return swap(old, new)


BAD = {
    "malformed": ("[h900\n", ["not valid TOML", "line 1"]),
    "malformed later": (swap('title = "H900"', "title = H900"), ["not valid TOML", "line 3"]),
    "twice": (GOOD + GOOD, ["not valid TOML", "line 9"]),
    "empty": ("", ["no devices", "[my-gpu]"]),
    "not a table": ("h900 = 3\n", ["h900: 3 is not a table"]),
    "bad id": (swap("[h900]", '["H 900\\n"]'), ["not a device id", "a-z"]),
    "no title": (swap('title = "H900"\n', ""), ["h900.title: missing", "add title"]),
    "blank title": (swap('"H900"', '" "'), ["h900.title", "fill it in"]),
    "unknown device key": (swap("title", "titel"), ["h900.titel: unknown 'titel'", "did you mean 'title'?"]),
    "line break in key": (swap("title", '"ti\\ntle"'), ["h900.ti tle: unknown 'ti\\ntle'", "mean 'title'?"]),
    "no source": (swap('source = "a datasheet, page 2"\n', ""), ["h900.peak[0].source: missing", "add source"]),
    "blank source": (swap('"a datasheet, page 2"', '""'), ["h900.peak[0].source", "fill it in"]),
    "no date": (swap("date = 2026-11-29\n", ""), ["h900.peak[0].date: missing", "add date"]),
    "date as number": (swap("2026-11-29", "2026"), ["h900.peak[0].date: 2026 is not text", "quotes"]),
    "bad strength": (GOOD.replace("date =", 'strength = "primry"\ndate ='), ["strength", "did you mean 'primary'?"]),
    "no peak": (swap(f"peak = [{PEAK}]\n", ""), ["h900.peak: missing", "dtypes, unit, sparsity"]),
    "empty peak": (swap(f"[{PEAK}]", "[]"), ["h900.peak: missing"]),
    "peak not a list": (swap(f"[{PEAK}]", PEAK), ["h900.peak: not a list", "[[h900.peak]]"]),
    "peak row not a table": (swap(PEAK, "3"), ["h900.peak[0]: 3 is not a table"]),
    "no dtypes": (swap('dtypes = ["bf16"], ', ""), ["h900.peak[0].dtypes: missing", "add dtypes"]),
    "dtypes not a list": (swap('["bf16"]', '"bf16"'), ["h900.peak[0].dtypes", "not a list", '["bf16", "fp16"]']),
    "no dtype in list": (swap('["bf16"]', "[]"), ["h900.peak[0].dtypes", "not a list of names"]),
    "dtype not text": (swap('["bf16"]', "[16]"), ["h900.peak[0].dtypes: 16 is not text"]),
    "unknown dtype": (swap('["bf16"]', '["bfloat16"]'), ["peak[0].dtypes: unknown 'bfloat16'", "mean 'bf16'?"]),
    "unknown row key": (swap("sparsity", "sparse"), ["h900.peak[0].sparse: unknown", "did you mean 'sparsity'?"]),
    "bad sparsity": (swap('"dense"', '"4:8"'), ["h900.peak[0].sparsity: unknown '4:8'", "one of: dense, 2:4"]),
    "no sparsity": (swap('sparsity = "dense", ', ""), ["h900.peak[0].sparsity: missing"]),
    "bad unit": (swap('"tensor"', '"tensr"'), ["h900.peak[0].unit: unknown 'tensr'", "did you mean 'tensor'?"]),
    "bad accumulate": (peak('flop_per_s = "9 TFLOP/s", accumulate = "fp8"'), ["peak[0].accumulate", "fp64, fp32"]),
    "no value": (swap(', flop_per_s = "900 TFLOP/s"', ""), ["h900.peak[0].flop_per_s: missing"]),
    "count for rate": (peak('flop_per_s = "989 TFLOP"'), ["peak[0].flop_per_s: expected FLOP/s, got FLOP", "989.4 T"]),
    "bandwidth for rate": (peak('flop_per_s = "3 TB/s"'), ["peak[0].flop_per_s: expected FLOP/s, got byte/s"]),
    "TFLOPS": (peak('flop_per_s = "989 TFLOPS"'), ["peak[0].flop_per_s: unknown unit 'TFLOPS'", '"989.4 TFLOP/s"']),
    "no unit": (peak('flop_per_s = "989"'), ["peak[0].flop_per_s: expected FLOP/s, got 1", "write it in FLOP/s"]),
    "number": (peak("flop_per_s = 989e12"), ["h900.peak[0].flop_per_s", "has no unit", "989.4 TFLOP/s"]),
    "zero": (peak('flop_per_s = "0 TFLOP/s"'), ["h900.peak[0].flop_per_s", "write"]),
    "negative": (peak('flop_per_s = "-1 TFLOP/s"'), ["h900.peak[0].flop_per_s", "not positive and finite"]),
    "nan": (peak('flop_per_s = "nan TFLOP/s"'), ["h900.peak[0].flop_per_s", "not a number and a unit", "such as"]),
    "inf": (peak('flop_per_s = "1e999 TFLOP/s"'), ["h900.peak[0].flop_per_s", "not positive and finite"]),
    "too fast": (peak('flop_per_s = "989e6 TFLOP/s"'), ["h900.peak[0].flop_per_s", "impossible", "prefix"]),
    "duplicate": (swap(PEAK, f"{PEAK}, {PEAK}"), ["h900.peak[1]: duplicate", "bf16 tensor dense fp32", "keep one"]),
    "dtype twice": (swap('["bf16"]', '["bf16", "bf16"]'), ["h900.peak[0]: duplicate", "keep one"]),
    "derive count": (
        peak(f'flop_per_s = "9 TFLOP/s", {DERIVE}'.replace("132", "1.5")),
        ["peak[0].derive.units", "132"],
    ),
    "derive zero": (peak(f'flop_per_s = "9 TFLOP/s", {DERIVE}'.replace("132", "0")), ["derive.units", "positive"]),
    "derive key": (peak(f'flop_per_s = "9 TFLOP/s", {DERIVE}'.replace("clock_hz", "clock")), ["mean 'clock_hz'?"]),
    "derive unit": (peak(f'flop_per_s = "9 TFLOP/s", {DERIVE}'.replace("GHz", "GB")), ["derive.clock_hz", "1.83 GHz"]),
    "no memory": (swap(f"memory = [{MEMORY}]\n", ""), ["h900.memory: missing", 'level = "hbm"', "bytes_per_s"]),
    "no bandwidth": (swap('bytes_per_s = "3 TB/s", ', ""), ["h900.memory: missing", "bytes_per_s"]),
    "only l2": (swap('"hbm"', '"l2"'), ["h900.memory: missing", 'level = "hbm"']),
    "bad level": (swap('"hbm"', '"hmb"'), ["h900.memory[0].level: unknown 'hmb'", "did you mean 'hbm'?"]),
    "duplicate level": (swap(MEMORY, f"{MEMORY}, {MEMORY}"), ["h900.memory[1]: duplicate", "hbm", "keep one"]),
    "bits": (swap('"3 TB/s"', '"3 Tb/s"'), ["h900.memory[0].bytes_per_s: unknown unit 'Tb'", "3.35 TB/s"]),
    "bytes only": (swap('"3 TB/s"', '"3 TB"'), ["h900.memory[0].bytes_per_s: expected byte/s, got byte"]),
    "zero bandwidth": (swap('"3 TB/s"', '"0 TB/s"'), ["h900.memory[0].bytes_per_s", "write"]),
    "thousandfold": (swap('"3 TB/s"', '"1792 TB/s"'), ["h900.memory[0].bytes_per_s", "T for G?"]),
    "bad capacity": (swap('"80 GB"', '"80 GB/s"'), ["h900.memory[0].capacity_bytes: expected byte, got byte/s"]),
    "names not a list": (GOOD.replace("title =", 'reported_as = "H900"\ntitle =', 1), ["h900.reported_as", "list"]),
}


def test_the_good_file_is_good_with_every_optional_part(tmp_path):
    path = tmp_path / "my.toml"
    text = peak(f'flop_per_s = "989 TFLOP/s", accumulate = "fp16", {DERIVE}')
    path.write_text(text)
    gpu = load_devices(path)["h900"]
    assert gpu.peak("bf16", accumulate="fp16").derive == Derivation(132, 4096, 1.83e9)


@pytest.mark.parametrize("text, parts", BAD.values(), ids=BAD)
def test_a_wrong_file_names_the_file_the_key_and_the_remedy(tmp_path, text, parts):
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(HardwareError) as caught:
        load_devices(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert [part for part in parts if part not in message] == [], message


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(HardwareError, match="none.toml: No such file.*; give the path"):
        load_devices(tmp_path / "none.toml")
    with pytest.raises(HardwareError, match="directory; give the path"):
        load_devices(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'[h900]\ntitle = "\xe9"\n')
    with pytest.raises(HardwareError, match="latin.toml: not valid TOML: 'utf-8'"):
        load_devices(tmp_path / "latin.toml")


# ------------------------------------------------------------------------------------------------------- in code


def in_code(**changes):
    from_a = {"source": "a", "date": "2026"}
    row = {"dtypes": ("bf16",), "unit": "tensor", "sparsity": "dense", "flop_per_s": 100.0} | from_a
    hbm = {"level": "hbm", "bytes_per_s": 4.0} | from_a
    for key, value in changes.items():
        (row if key in {"dtypes", "unit", "sparsity", "flop_per_s"} else hbm)[key] = value
    return Device(id="x1", title="X1", peaks=(Peak(**row),), memories=(Memory(**hbm),))


def test_a_device_built_in_code():
    assert in_code().ridge_flop_per_byte("bf16") == 25.0


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"flop_per_s": 0.0}, "x1.peak[0].flop_per_s: 0.0 is not positive"),
        ({"flop_per_s": float("nan")}, "x1.peak[0].flop_per_s: nan is not positive"),
        ({"flop_per_s": float("inf")}, "x1.peak[0].flop_per_s: inf is not positive"),
        ({"flop_per_s": "100 TFLOP/s"}, "x1.peak[0].flop_per_s: '100 TFLOP/s' is not positive"),
        ({"dtypes": ("fp7",)}, "x1.peak[0].dtypes: unknown 'fp7'"),
        ({"dtypes": "bf16"}, "x1.peak[0].dtypes: unknown 'b'"),
        ({"dtypes": ()}, "x1.peak: missing"),
        ({"bytes_per_s": -4.0}, "x1.memory[0].bytes_per_s: -4.0 is not positive"),
        ({"bytes_per_s": 1e16}, "x1.memory[0].bytes_per_s: 1e+16 byte/s is impossible"),
        ({"source": ""}, "x1.memory[0].source: '' says nothing"),
        ({"date": None}, "x1.memory[0].date"),
    ],
)
def test_a_wrong_device_in_code(changes, part):
    with pytest.raises(HardwareError) as caught:
        in_code(**changes)
    assert part in str(caught.value)


def test_tensor_units_come_first_and_vector_units_can_be_asked_for():
    row = {"dtypes": ("bf16",), "sparsity": "dense", "source": "a", "date": "2026"}
    peaks = (Peak(unit="vector", flop_per_s=1.0, **row), Peak(unit="tensor", flop_per_s=100.0, **row))
    hbm = Memory(level="hbm", bytes_per_s=4.0, source="a", date="2026")
    gpu = Device(id="x1", title="X1", peaks=peaks, memories=(hbm,))
    assert (gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("bf16", "vector")) == (100.0, 1.0)


def test_simple():
    peaks = {"bf16": "989 TFLOP/s", "fp32": "67 TFLOP/s"}
    gpu = Device.simple("x1", "X1", peaks=peaks, hbm="3.35 TB/s", source="a", date="2026")
    assert (gpu.dtypes("tensor"), gpu.dtypes("vector")) == (("bf16",), ("fp32",))
    assert close(gpu.bytes_per_s(), 3.35e12) and gpu.peak("bf16").source == "a"
    with pytest.raises(HardwareError, match=r"^x1\.peak\[0\]\.flop_per_s: expected FLOP/s, got FLOP"):
        Device.simple("x1", "X1", peaks={"bf16": "989 TFLOP"}, hbm="3.35 TB/s", source="a", date="2026")


def test_doctests():
    result = doctest.testmod(hardware)
    assert result.attempted > 10 and result.failed == 0


def test_importing_hardware_needs_neither_torch_nor_numpy():
    code = "import sys, rooflab.hardware; sys.exit(bool({'torch', 'numpy', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
