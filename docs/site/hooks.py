"""mkdocs hooks: a link named by its page gets the page's title; links out of docs/ lead to the repository, if known."""

import re
from pathlib import Path

_PAGE = re.compile(r"\[([\w-]+\.md)\]\(([\w-]+\.md)")
_OUTSIDE = re.compile(r"\[([^]]*)\]\(\.\./([^)]*)\)")


def on_page_markdown(markdown, page, config, files):
    """The page's text with its links replaced."""

    def titled(link):
        head = (Path(config.docs_dir) / link[2]).read_text(encoding="utf-8").partition("\n")[0]
        return f"[{head.removeprefix('# ')}]({link[2]}"

    base = f"{config.repo_url.rstrip('/')}/blob/main/" if config.repo_url else ""
    markdown = _OUTSIDE.sub(
        lambda link: f"[{link[1]}]({base}{link[2]})" if base else f"{link[1]} (`{link[2]}`)", markdown
    )
    return _PAGE.sub(titled, markdown)
