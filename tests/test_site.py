"""The built site, checked without a browser. `make test` builds it first."""

import check_site
import pytest


@pytest.mark.parametrize("check", check_site.CHECKS, ids=lambda check: check.__name__)
def test_site(check):
    assert check() == []


def test_the_checks_find_what_they_look_for(tmp_path):
    (tmp_path / "index.html").write_text(
        '<nav class="bd-links"><a href="02-unwritten.html">x</a></nav>'
        '<script src="https://example.org/x.js"></script><img src="a.png"><svg></svg><a href="#nowhere">y</a>'
        '<div class="cell docutils container"></div>' + "x" * check_site.MAX_PAGE_BYTES,
        encoding="utf-8",
    )
    silent = [check.__name__ for check in check_site.CHECKS if not check(tmp_path)]
    assert silent == []


def test_no_site_says_how_to_build_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="make book"):
        check_site.pages(tmp_path)
