"""The page of a plan, in a real browser."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coop_jax._budget import format_bytes
from coop_jax._report.timeline import after
from tests.small_step import small_plan


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, if there is one."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-gpu",
                     "disable-dev-shm-usage", "window-size=1300,1400"):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    with webdriver.Chrome(options=options, service=service) as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("page") / "plan.html"
    plan = small_plan()
    # Text that a careless page would take for markup.
    plan = dataclasses.replace(plan, policy="</script><b>bold</b>")
    plan.plot(path)
    browser.get(path.as_uri())
    return browser


def point_at(page: Any, element: Any, x: float = 0.0) -> str:
    from selenium.webdriver.common.action_chains import ActionChains

    offset = int(x * element.size["width"] / 2)
    ActionChains(page).move_to_element_with_offset(element, offset, 0).perform()
    return page.find_element("id", "tip").text


def test_the_page_has_no_console_error_and_every_buffer(page) -> None:
    assert page.get_log("browser") == []
    boxes = after(small_plan()).boxes
    assert len(page.find_elements("css selector", "rect.box")) == len(boxes)
    assert page.title == f"coop_jax plan {small_plan().fingerprint}"
    summary = page.find_element("id", "summary").text
    assert "</script><b>bold</b>" in summary
    assert page.find_elements("tag name", "b") == []


def test_pointing_at_a_buffer_tells_name_bytes_and_source_line(page) -> None:
    boxes = after(small_plan()).boxes
    largest = max(range(len(boxes)), key=lambda i: boxes[i].end - boxes[i].start)
    element = page.find_element("css selector", f'rect[data-box="{largest}"]')
    tip = point_at(page, element)
    assert tip.startswith(f"{boxes[largest].name}  {boxes[largest].type}")
    assert f"({boxes[largest].size:,} bytes)" in tip
    assert "tests/small_step.py:" in tip


def test_pointing_at_a_step_tells_what_is_alive(page) -> None:
    chart = page.find_element("id", "live")
    tip = point_at(page, chart)
    step = int(tip.split()[1].rstrip(":"))
    timeline = after(small_plan())
    assert timeline.steps[step].partition(" at ")[0] in tip
    assert f"{format_bytes(int(timeline.live()[step]))} alive" in tip
    assert "largest:" in tip


def test_the_wheel_zooms_and_a_double_click_shows_all_again(page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    chart = page.find_element("id", "map")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)

    def shown() -> str:
        return page.execute_script("return view.join()")

    whole = shown()
    origin = ScrollOrigin.from_element(chart)
    ActionChains(page).scroll_from_origin(origin, 0, -300).perform()
    start, end = map(float, shown().split(","))
    assert 0 < start < end < len(after(small_plan()).steps)
    ActionChains(page).double_click(chart).perform()
    assert shown() == whole
    assert page.get_log("browser") == []


def test_the_addresses_as_written_can_be_shown(page) -> None:
    def heights() -> list[str]:
        rects = page.find_elements("css selector", "rect.box")
        return [rect.get_attribute("fill") for rect in rects]

    planned = heights()
    page.find_element("id", "show-before").click()
    assert "#d1383f" in planned and "#d1383f" not in heights()
    page.find_element("id", "show-after").click()
    assert heights() == planned


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
