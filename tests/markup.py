"""HTML as a browser would read it, and text that would like to be HTML."""

from html.parser import HTMLParser

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x",
    "&lt;",
    "{{title}}",
]


class Reader(HTMLParser):
    """What a browser would make of it: the elements, and the text between them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data):
        self.text += data
