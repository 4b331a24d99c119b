"""The HTML page of a report: one file that loads nothing from the network."""

import base64
import datetime
import secrets
from importlib import resources
from pathlib import Path

from vit_jax.report.content import Content
from vit_jax.report.page_data import page_data, to_script
from vit_jax.report.style import css_variables

# plotly.js-basic-dist-min of npm (MIT license), compressed: 1.2 MB become 0.5 MB of the page.
PLOTLY = "page.plotly-basic-4.1.1.min.js.gz"


def html_page(content: Content, folder: Path) -> str:
    """Returns the page, which will lie in `folder`."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    ours = resources.files("vit_jax.report")
    return environment.from_string((ours / "page.html").read_text(encoding="utf-8")).render(
        content=content,
        style=(ours / "page.css").read_text(encoding="utf-8"),
        script=(ours / "page.js").read_text(encoding="utf-8"),
        light=css_variables(dark=False),
        dark=css_variables(dark=True),
        data=to_script(page_data(content, folder)),
        # The URL-safe alphabet has no "/", so the library contains nothing that looks like a path.
        plotly=base64.urlsafe_b64encode((ours / PLOTLY).read_bytes()).decode(),
        # Only scripts with this number run, so a text of a run cannot become a script.
        nonce=secrets.token_urlsafe(12),
        numbers={run.name: i for i, run in enumerate(content.runs)},
        made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
