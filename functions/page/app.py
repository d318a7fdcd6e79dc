"""Page with a form: the most frequent words of a text, while they are counted line by line.

It knows nothing of fngate: `python app.py` serves it alone on port 7860.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator

import gradio as gr

BEST = 5
"""Number of words that are shown."""
PAUSE_S = 0.2
"""Seconds between two lines: the answer is seen to grow."""
LINES_MAX = 100
EXAMPLE = "the cat sat\non the mat\nand the rat sat on the cat"


def shares(text: str) -> dict[str, float]:
    """Return the most frequent words with their shares."""
    words = Counter(re.findall(r"\w+", text.lower()))
    return {word: count / words.total() for word, count in words.most_common(BEST)}


def count(text: str) -> Iterator[dict[str, float]]:
    """Yield the answer after each line."""
    lines = text.splitlines()[:LINES_MAX]
    for number in range(1, len(lines) + 1):
        if number > 1:
            time.sleep(PAUSE_S)
        yield shares("\n".join(lines[:number]))


with gr.Blocks(title="Words") as page:
    gr.Markdown("# Words\nWhich words are the most frequent ones?")
    text = gr.Textbox(EXAMPLE, lines=6, max_length=20_000, label="Text")
    button = gr.Button("Count", variant="primary")
    label = gr.Label(num_top_classes=BEST, label="Words")
    button.click(count, text, label)

# A theme without fonts of other sites: the page works without the internet.
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])

if __name__ == "__main__":
    page.launch(theme=THEME)
