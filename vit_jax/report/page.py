"""The HTML page of a report: one file that loads nothing from the network."""

import datetime
from importlib import resources

from vit_jax.report.content import Content
from vit_jax.report.style import css_variables, inline_svg


def html_page(content: Content) -> str:
    """Returns the page."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = resources.files("vit_jax.report")
    return environment.from_string((folder / "page.html").read_text()).render(
        content=content,
        style=(folder / "page.css").read_text(),
        script=(folder / "page.js").read_text(),
        light=css_variables(dark=False),
        dark=css_variables(dark=True),
        svgs={
            p.file: inline_svg(p.svg, f"p{i}", " ".join([f"{p.title}.", *p.notes]))
            for i, p in enumerate(content.pictures)
        },
        made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
