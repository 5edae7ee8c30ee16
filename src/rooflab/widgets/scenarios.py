"""The book's scenarios, one function a slider page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .. import ledger, records
from ..hardware import devices
from ..models import model
from ..step import STORED_BYTES, linear_stack
from ..units import DTYPE_BYTES
from .scenario import Dot, Point, Scenario, Slider, Total, powers_of_two


def roofline_scenario() -> Scenario:
    """Return section 1's page: six workloads, a size n, and a batch B that moves a weight matrix to the right."""
    # Two SMs share the panels of neighbouring 128 × 256 tiles, so L2 sees tiles of twice the height.
    tile = {"b": "dtype", "B_M": 256, "B_N": 256}
    return Scenario(
        id="roofline",
        title="Workloads on a roofline",
        sliders=(
            Slider("n", "size n", powers_of_two(64, 32768), 4096),
            Slider("B", "batch B", powers_of_two(1, 4096), 8),
        ),
        dots=(
            Dot("weights n × n, batch B", "gemm", {"M": "B", "N": "n", "K": "n"} | tile),
            Dot("GEMM, n × n × n", "gemm", {"M": "n", "N": "n", "K": "n"} | tile),
            Dot("GEMV, n × n", "gemv", {"M": "n", "K": "n", "b": "dtype"}),
            Dot("softmax, n × n", "softmax", {"R": "n", "C": "n", "b": "dtype"}),
            Dot("layer norm, n × n", "layernorm", {"R": "n", "C": "n", "b": "dtype"}),
            Dot("dot product, 2²⁴ elements", "dot", {"n": 2**24, "b": "dtype"}),
        ),
        points=_all_points(gemm_points),
        x_range=(0.1, 3e4),
    )


def fusion_scenario() -> Scenario:
    """Return section 3's page: a chain, the end of a layer, and attention, each apart and fused."""
    attention = {"B": 1, "h": 32, "L": "L", "d_h": 128, "b": "dtype"}
    return Scenario(
        id="fusion",
        title="Fusion as a ledger",
        sliders=(
            Slider("k", "chain length k", tuple(range(1, 9)), 4),
            Slider("n", "chain size n", powers_of_two(2**14, 2**28), 2**26),
            Slider("R", "rows R of 4096", (1, 16, 256, 1024, 4096, 16384, 65536), 65536),
            Slider("L", "context L", powers_of_two(256, 16384), 4096),
        ),
        dots=(
            Dot("chain, k kernels", "elementwise_unfused", {"n": "n", "k": "k", "b": "dtype"}),
            Dot("chain, one kernel", "elementwise_fused", {"n": "n", "k": "k", "b": "dtype"}),
            Dot("norm, relu, add: three kernels", "norm_relu_add_unfused", {"R": "R", "C": 4096, "b": "dtype"}),
            Dot("norm, relu, add: one kernel", "norm_relu_add_fused", {"R": "R", "C": 4096, "b": "dtype"}),
            Dot("attention, three kernels", "attention_naive", attention),
            Dot("attention, one kernel", "attention_prefill", attention | {"h_kv": 32, "c": 1}),
        ),
        pairs=((0, 1), (2, 3), (4, 5)),
        points=_all_points(fusion_points),
        device="h200-sxm",
        x_range=(0.05, 1e4),
    )


_FUSION_DOTS = [f"elementwise_{how}" for how in ("unfused", "fused")]
_FUSION_DOTS += [f"norm_relu_add_{how}" for how in ("unfused", "fused")] + ["attention_naive", "attention_prefill"]
# Which recorded version stands for which dot's workload, and which of its case's values the sliders must show.
_FUSION = {
    "chain": ({"unfused": "elementwise_unfused", "fused": "elementwise_fused"}, {"n": "n", "k": "k"}),
    "norm": ({"eager": "norm_relu_add_unfused", "fused_row": "norm_relu_add_fused"}, {"rows": "R"}),
    "attention": ({"naive": "attention_naive", "fused": "attention_prefill"}, {"L": "L"}),
}


# Dense models with a gated MLP, whose heads any group below divides.
MODELS = ("llama-2-7b", "llama-3-8b", "mistral-7b", "qwen3-8b", "qwen3-32b", "llama-2-70b", "llama-3-70b")


def _model_menu() -> Slider:
    """Return the menu of models: its fields are the sizes that dots read, and `g`, which moves the slider of groups."""
    found = [model(name) for name in MODELS]
    fields = tuple(
        {
            **{name: getattr(each, name) for name in ("d", "h", "d_h", "d_ff", "V", "n_layers")},
            "q": each.h * each.d_h,
            "kv": 2 * each.h * each.d_h,
            "gate_up": 2 * each.d_ff,
            "g": each.h // each.h_kv,
        }
        for each in found
    )
    names = tuple(each.title for each in found)
    return Slider("model", "Model", tuple(range(1, len(found) + 1)), 1, names=names, fields=fields)


def _menu(name: str, label: str, formats: dict[str, str]) -> Slider:
    """Return a menu of storage formats, narrow to wide; it starts at the widest."""
    sizes = {title: STORED_BYTES[each] for title, each in formats.items()}
    return Slider(name, label, tuple(sizes.values()), max(sizes.values()), names=tuple(sizes))


def _model_and_formats() -> tuple[Slider, ...]:
    """Return the menus that section 2's pages begin with."""
    cache = {"8 bit": "fp8", "16 bit": "bf16"}
    return (
        _model_menu(),
        _menu("weights", "Weights stored in", {"4 bit, shared scales": "int4-grouped"} | cache),
        _menu("cache", "Cache stored in", cache),
    )


_GROUPS = Slider("g", "query heads per KV head g", powers_of_two(1, 32), 1)
_STORED = {"b_w": "weights", "b_a": 2}


def _linear(label: str, d_in: str, d_out: str, tokens: dict) -> Dot:
    return Dot(label, "linear", tokens | _STORED | {"d_in": d_in, "d_out": d_out})


def _step_dots(tokens: dict, attention: dict, head_tokens: float | str) -> tuple[Dot, ...]:
    """Return the operations of one layer, and the LM head, as dots."""
    sizes = {"h": "model.h", "h_kv": "model.h/g", "d_h": "model.d_h", "b_kv": "cache", "b_a": 2}
    return (
        _linear("Q projection", "model.d", "model.q", tokens),
        _linear("K and V projections", "model.d", "model.kv/g", tokens),
        Dot("attention", "attention", tokens | sizes | attention),
        _linear("O projection", "model.q", "model.d", tokens),
        _linear("MLP, gate and up", "model.d", "model.gate_up", tokens),
        _linear("MLP, down", "model.d_ff", "model.d", tokens),
        # Quantised models leave the head in 16 bits.
        Dot(
            "LM head", "linear", tokens | {"s": head_tokens, "b_w": 2, "b_a": 2, "d_in": "model.d", "d_out": "model.V"}
        ),
    )


_STEP_TERMS = tuple((index, "model.n_layers") for index in range(6)) + ((6, 1),)


def decode_scenario() -> Scenario:
    """Return section 2's decode page: the operations of one layer, and of the LM head, for one step."""
    return Scenario(
        id="decode",
        title="One decode step",
        sliders=(
            *_model_and_formats(),
            Slider("B", "batch B", powers_of_two(1, 1024), 1),
            Slider("L", "context L", powers_of_two(256, 131072), 4096),
            _GROUPS,
            Slider("s", "new tokens per sequence s", (1, 2, 3, 4, 5, 6, 8), 1),
        ),
        dots=_step_dots({"B": "B", "s": "s"}, {"L": "L", "c": 0.5}, "s"),
        totals=(Total("One step", _STEP_TERMS, "s", "B"),),
        crossings=((4, "B"), (2, "B")),
        points=_all_points(decode_points),
        device="h200-sxm",
        x_range=(0.3, 3e3),
        y_range=(1e11, 1e16),
    )


def prefill_scenario() -> Scenario:
    """Return section 2's prefill page: the same operations for the last chunk of a prompt."""
    tokens = {"B": 1, "s": "L/chunks"}
    mask = Slider("c", "Attention", (0.5, 1), 0.5, names=("causal", "all pairs"))
    return Scenario(
        id="prefill",
        title="The last chunk of a prompt",
        sliders=(
            *_model_and_formats(),
            mask,
            Slider("L", "prompt L", powers_of_two(256, 131072), 4096),
            Slider("chunks", "chunks", powers_of_two(1, 64), 1),
            _GROUPS,
        ),
        dots=_step_dots(tokens, {"L": "L", "c": "c"}, 1),
        totals=(Total("The last chunk", _STEP_TERMS, "L/chunks", 1),),
        crossings=((4, "L"), (2, "L")),
        device="h200-sxm",
        x_range=(0.3, 1e5),
        y_range=(1e11, 1e16),
    )


def launch_scenario() -> Scenario:
    """Return section 6's page: k kernels, each launched and each moving its bytes, and one that does the same work."""
    times_s = (0.2e-6, 0.5e-6, 0.6e-6, 0.9e-6, 1.2e-6, 2e-6, 3e-6, 5e-6, 7e-6, 13e-6, 20e-6, 40e-6)
    chain = {"k": "k", "n": "n", "b": "dtype"}
    return Scenario(
        id="launch",
        title="Launches as a roof",
        sliders=(
            # Llama 2 7B has 32 layers with 7 linear layers each: 224.
            Slider("k", "kernels k", powers_of_two(1, 4096), 256),
            Slider("n", "elements n (a kernel's time)", powers_of_two(2**8, 2**28), 2**18),
            Slider("t_launch", "time per launch", times_s, 5e-6, unit="s"),
        ),
        dots=(
            Dot("k kernels", "elementwise_unfused", chain),
            Dot("one fused kernel", "elementwise_fused", chain),
        ),
        pairs=((0, 1),),
        launch="t_launch",
        device="h200-sxm",
        x_range=(0.05, 1e4),
        y_range=(1e6, 1e16),
    )


def waves_scenario() -> Scenario:
    """Return section 5's page: a product as it is wanted, and as whole waves of whole tiles compute it."""
    shape = {"M": "M", "N": "N", "K": 4096}
    tile = {"B_M": "B_M", "B_N": "B_N"}
    return Scenario(
        id="waves",
        title="Whole tiles in whole waves",
        sliders=(
            Slider("M", "rows M", (16, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192), 256),
            Slider("N", "columns N", (1024, 2048, 4096, 8192, 11008, 12288, 14336, 22016, 28672, 57344), 12288),
            Slider("B_M", "tile rows", (16, 32, 64, 128, 256), 128),
            Slider("B_N", "tile columns", (32, 64, 128, 256), 256),
        ),
        dots=(
            Dot("product as wanted", "gemm", shape | tile | {"b": "dtype"}),
            Dot("product in whole waves", "gemm_waves", shape | tile | {"b": "dtype", "n_SM": 132}),
        ),
        pairs=((1, 0),),
        devices=tuple(devices()[name] for name in ("h100-sxm", "h200-sxm")),  # both have 132 SMs
        device="h200-sxm",
        x_range=(1, 1e4),
        y_range=(1e12, 1e16),
    )


def tile_budget_scenario() -> Scenario:
    """Return section 7's page: one tile of attention, its products, its exponentials and the rest of its softmax."""
    cards = (devices()[name] for name in ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200-hgx"))
    sizes = {name: name for name in ("d_h", "B_M", "B_N", "L")}
    return Scenario(
        id="tile_budget",
        title="The time budget of a tile",
        sliders=(
            Slider("d_h", "head dimension", (64, 128, 256), 128),
            Slider("B_M", "queries in a tile", (64, 128, 192, 256), 128),
            Slider("B_N", "keys in a tile", (32, 64, 128, 192, 256), 128),
            Slider("L", "context L", powers_of_two(512, 131072), 8192),
        ),
        dots=(Dot("one tile of attention", "attention_tile", sizes | {"b": "dtype"}),),
        serial=True,
        devices=tuple(card for card in cards if "fp32" in card.dtypes("exp")),
        x_range=(1, 1e6),
        y_range=(1e12, 1e16),
    )


def both_scenario() -> Scenario:
    """Return section 2's last page: decode and prefill of one model on one roofline."""
    sizes = {name: f"model.{name}" for name in ("d", "h", "d_h", "d_ff", "V", "n_layers")} | {"h_kv": "model.h/g"}
    attention = {"h": "model.h", "h_kv": "model.h/g", "d_h": "model.d_h", "b_kv": "cache", "b_a": 2}
    stored = _STORED | {"b_kv": "cache"}
    decode, prompt = {"B": "B", "s": 1, "L": "L"}, {"B": 1, "s": "L", "L": "L"}

    def part(values: dict, *names: str) -> dict:
        return {name: values[name] for name in names}

    return Scenario(
        id="both",
        title="Decode and prefill on one roofline",
        sliders=(
            *_model_and_formats(),
            Slider("B", "batch B of decode", powers_of_two(1, 1024), 1),
            Slider("L", "context and prompt L", powers_of_two(256, 131072), 4096),
            _GROUPS,
        ),
        dots=(
            _linear("decode, MLP gate and up", "model.d", "model.gate_up", part(decode, "B", "s")),
            Dot("decode, attention", "attention", decode | attention | {"c": 1}),
            Dot("decode, whole step", "step", decode | sizes | stored | {"c": 1, "n_out": 1}),
            _linear("prefill, MLP gate and up", "model.d", "model.gate_up", part(prompt, "B", "s")),
            Dot("prefill, attention fused", "attention", prompt | attention | {"c": 0.5}),
            Dot("prefill, attention apart", "attention_apart", prompt | attention),
            Dot("prefill, whole prompt", "step", prompt | sizes | stored | {"c": 0.5, "n_out": 1}),
        ),
        pairs=((5, 4),),
        device="h200-sxm",
        x_range=(0.3, 1e5),
        y_range=(1e11, 1e16),
    )


def decode_points(device: str, root: Path = records.BOOK) -> tuple[Point, ...]:
    """Return the recorded decode attention of `device`, and its linear layers at the MLP's place on the page."""
    points = []
    record = records.find(device, "decode_attention", root)
    for row in record.rows if record else ():
        case = row["case"]
        if row["version"].endswith("_stack"):  # many calls: of one, there is a row beside it
            continue
        sizes = {name: case[name] for name in ("B", "L", "h", "h_kv", "d_h")}
        demand = ledger.WORKLOADS["attention"].demand(**sizes, s=1, c=1, b_kv=2, b_a=2)
        group = case["h"] // case["h_kv"]
        when = {"B": case["B"], "L": case["L"], "g": group, "s": 1, "cache": 2}
        points.append(_decode_point(f"attention, g = {group}", device, demand, row, record, when, 2))
    record = records.find(device, "decode_linear", root)
    for row in record.rows if record else ():
        case = row["case"]
        merged = row["version"] not in ("eager", "graph")
        demand = linear_stack(model(case["model"]), case["layers"], batch=case["B"], merged=merged)
        when = {"model": 1 + MODELS.index(case["model"]), "B": case["B"], "s": 1, "weights": 2}
        when["g"] = model(case["model"]).h // model(case["model"]).h_kv
        points.append(_decode_point("all linear layers", device, demand, row, record, when, None))
    return tuple(points)


def _decode_point(label, device, demand, row, record, when, dot) -> Point:
    run = record.runs[row["run"]]
    return Point(
        label=f"{label}, {row['version']}",
        device=device,
        dtype=row["case"]["dtype"],
        intensity=demand.intensity_flop_per_byte(),
        flop_per_s=demand.flop / row["time_s"],
        source=f"GPU time, {run['measured'][:10]}, PyTorch {run['versions']['torch']}",
        when=when,
        dot=dot,
    )


def _all_points(points_of) -> tuple[Point, ...]:
    """Return the points of every device with records: the book's, and the reader's own marked as such."""
    return tuple(
        dataclasses.replace(point, label=f"{whose}: {point.label}", source=f"yours, {point.source}") if whose else point
        for whose, root in records.shown_roots()
        for device in records.devices_with_records(root)
        for point in points_of(device, root)
    )


def fusion_points(device: str, root: Path = records.BOOK) -> tuple[Point, ...]:
    """Return the recorded versions of section 3's workloads at the ledger's intensities."""
    points = []
    for experiment, (versions, sliders) in _FUSION.items():
        record = records.find(device, experiment, root)
        for row in record.rows if record else ():
            if (workload := versions.get(row["version"])) is None:
                continue
            values = {"b": DTYPE_BYTES[row["case"]["dtype"]], "c": 1, "h_kv": row["case"].get("h")}
            values |= {"C": row["case"].get("columns"), "R": row["case"].get("rows")}
            values |= {name: row["case"][name] for name in row["case"] if name in ledger.SYMBOLS}
            demand = ledger.WORKLOADS[workload].demand(**{k: v for k, v in values.items() if v is not None})
            run = record.runs[row["run"]]
            points.append(
                Point(
                    label=f"{experiment}, {row['version']}",
                    device=device,
                    dtype=row["case"]["dtype"],
                    intensity=demand.intensity_flop_per_byte(),
                    flop_per_s=demand.flop / row["time_s"],
                    source=f"GPU time, {run['measured'][:10]}, PyTorch {run['versions']['torch']}",
                    when={slider: row["case"][name] for name, slider in sliders.items()},
                    dot=_FUSION_DOTS.index(workload),
                )
            )
    return tuple(points)


def gemm_points(device: str, root: Path = records.BOOK) -> tuple[Point, ...]:
    """Return the recorded matrix products of `device` at the intensities that the ledger gives their shapes."""
    record = records.find(device, "gemm", root)
    gemm = ledger.WORKLOADS["gemm"]
    points = []
    for row in record.rows if record else ():
        shape = {name: row["case"][name] for name in "MNK"}
        dtype, run = row["case"]["dtype"], record.runs[row["run"]]
        versions = run["versions"]
        points.append(
            Point(
                label=f"{dtype} GEMM, n = {shape['M']}",
                device=device,
                dtype=dtype,
                intensity=gemm.intensity()(**shape, b=DTYPE_BYTES[dtype]),
                flop_per_s=gemm.flop(**shape) / row["time_s"],
                source=f"cuBLAS, {run['measured'][:10]}, PyTorch {versions['torch']}, CUDA {versions['cuda']}",
            )
        )
    return tuple(points)
