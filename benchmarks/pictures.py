"""Makes the pictures of the documentation: plans of a GPT and a ResNet, and a frontier.

    python -m benchmarks.pictures docs/images

Screenshots of pages need chromium, chromedriver and selenium; the rest matplotlib.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import coop_jax
from benchmarks.models import POLICIES, build

BUDGETS = {"gpt2": 0.4, "resnet50": 0.7}
WIDTH, HEIGHT = 1280, 1580


def screenshot(plan: coop_jax.Plan, path: Path) -> None:
    """The page of a plan as a browser shows it, with a buffer pointed at."""
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    size = f"window-size={WIDTH},{HEIGHT}"
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", size):
        options.add_argument(f"--{argument}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with (
        tempfile.TemporaryDirectory() as folder,
        webdriver.Chrome(options=options, service=service) as browser,
    ):
        page = Path(folder) / "plan.html"
        plan.plot(page)
        browser.get(page.as_uri())
        boxes = browser.find_elements("css selector", "rect.box")
        largest = max(boxes[:400], key=lambda b: b.size["width"] * b.size["height"])
        ActionChains(browser).move_to_element(largest).perform()
        browser.save_screenshot(str(path))


def main() -> None:
    folder = Path(sys.argv[1])
    for name, budget in BUDGETS.items():
        model = build(name)
        step = coop_jax.remat(model.step, budget, donate_argnums=model.donate_argnums)
        plan = step.plan(*model.abstract_args())
        plan.plot(folder / f"{name}_plan.png")
        screenshot(plan, folder / f"{name}_page.png")
    model = build("gpt2")
    others = {policy: build("gpt2", policy=policy).step for policy in POLICIES}
    curve = coop_jax.frontier(
        model.step,
        *model.abstract_args(),
        points=7,
        compare=others,
        donate_argnums=model.donate_argnums,
    )
    print(curve)
    curve.plot(folder / "gpt2_frontier.png")


if __name__ == "__main__":
    main()
