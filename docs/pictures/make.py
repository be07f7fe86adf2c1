#!/usr/bin/env python3
"""Makes the SVG pictures of docs/explanation, docs/how-to and docs/tutorials.

    python3 docs/pictures/make.py            writes all of them, next to this file
    python3 docs/pictures/make.py --check    exits with 1 if one on disk is not what this would write

Each picture is a function below, with its text in it. Screens of a terminal are text in *.screen.txt, drawn by terminal.py.
Figures in a picture come from a run that its page names, or are computed here; nothing is random. Every picture has its
own light background, so it reads the same on a light and on a dark page.
"""

import sys
from html import escape
from pathlib import Path

import terminal

HERE = Path(__file__).resolve().parent
INK, SOFT, LINE, PAPER, FILL = "#1f2933", "#5b6875", "#9aa5b1", "#fbfbf9", "#eef1f4"
BLUE, ORANGE, GREEN, RED = "#2b6cb0", "#c05621", "#2f7d4f", "#b83232"


class Picture:
    """Text, boxes, lines and dots on a background of 700 by a height."""

    def __init__(self, title, height, width=700):
        self.width, self.height = width, height
        self.out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="DejaVu Sans, Verdana, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{SOFT}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="none" stroke="#d5dae0"/>',
        ]

    def text(self, x, y, words, colour=INK, size=13, anchor="start", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.out.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def box(self, x, y, width, height, fill=FILL, stroke=LINE, radius=5, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.out.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" stroke="{stroke}"{dash}/>'
        )

    def named(self, x, y, width, height, *lines, fill=FILL, stroke=LINE, dashed=False):
        """A box with lines of text in its middle, the first of them bold."""
        self.box(x, y, width, height, fill, stroke, dashed=dashed)
        top = y + height / 2 - (len(lines) - 1) * 8 + 4.5
        for number, words in enumerate(lines):
            bold = number == 0
            self.text(x + width / 2, top + 16 * number, words, INK if bold else SOFT, 13 if bold else 12, "middle", bold)

    def line(self, x1, y1, x2, y2, colour=SOFT, width=1.4, arrow=False, dashed=False):
        head = ' marker-end="url(#head)"' if arrow else ""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.out.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="{width}"{dash}{head}/>'
        )

    def curve(self, points, colour, width=2.2):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>')

    def dot(self, x, y, colour=BLUE, radius=4):
        self.out.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius}" fill="{colour}"/>')

    def svg(self):
        return "\n".join([*self.out, "</svg>", ""])


def promises():
    p = Picture("Where a call meets each promise, from its arrival to its answer", 268)
    stages = [("accept", "every call"), ("queue", "waits its turn"), ("limit", "draws, or not"), ("forward", "at most once")]
    p.text(20, 98, "clients", bold=True)
    for number, (name, does) in enumerate(stages):
        x = 100 + number * 122
        p.named(x, 66, 100, 56, name, does)
        p.line(x - 22 if number else 74, 94, x - 2, 94, arrow=True)
    p.named(606, 66, 80, 56, "backend", "fragile", fill="#f7ece4", stroke="#d9b99f")
    p.line(566, 94, 604, 94, arrow=True)
    kept = [
        (150, ["7  everything is", "bounded"]),
        (272, ["2  no wait past a", "deadline", "4  whose client left", "is never sent", "6  a turn that can", "run does run"]),
        (394, ["1  never more", "than N", "3  a refusal draws", "nothing"]),
        (516, ["5  sent at most", "once"]),
    ]
    for x, lines in kept:
        p.line(x, 124, x, 146, LINE, dashed=True)
        for number, words in enumerate(lines):
            p.text(x - 50, 162 + number * 16, words, INK, 12)
    p.box(100, 22, 466, 26, "#e6effa", "#a9c3e2")
    p.text(333, 39, "8  the config: a bad one never replaces a good one", INK, 12, "middle")
    for number in range(4):
        p.line(150 + number * 122, 50, 150 + number * 122, 64, LINE, arrow=True)
    return p


def retries(clients=300, per_second=30, breaks_above=40, down=5.0):
    """Clients that are refused or fail, and try again after 1, 2, 4, … 32 s: how many calls have succeeded by each second.

    Two services of the same speed. The first refuses above its limit. The second falls over above 40 in a second, for 5 s.
    The share of its own wait that a client adds is spread evenly, by its number: no chance is involved.
    """
    results = []
    for falls in (False, True):
        due = [(0.0, client, 0) for client in range(clients)]
        done, taken, sent, down_until = [], [], 0, -1.0
        while due:
            due.sort()
            now, client, tries = due.pop(0)
            sent += 1
            taken = [at for at in taken if at > now - 1.0]
            if now < down_until:
                ok = False
            elif falls and len(taken) >= breaks_above:
                ok, down_until = False, now + down
            else:
                ok = falls or len(taken) < per_second
            if ok:
                taken.append(now)
                done.append(now)
            elif tries < 8:
                step = min(2.0**tries, 32.0)
                spread = (client * 0.6180339887 + tries * 0.3819660113) % 1.0
                due.append((now + step * (0.5 + spread), client, tries + 1))
        results.append((done, sent))
    return results


def waiting_beats_refusing():
    (refused, sent_refused), (fallen, sent_fallen) = retries()
    p = Picture("300 calls at once: those that wait are all answered after 9 s; those that try again need up to 19 s", 342)
    left, top, width, height, seconds = 62, 44, 600, 218, 20
    chart(p, left, top, width, height, seconds, 300, "calls answered", "seconds after the storm", 2)

    def steps(times):
        points, answered = [(left, top + height)], 0
        for at in sorted(times):
            x = left + min(at, seconds) / seconds * width
            points += [(x, top + height - answered / 300 * height)]
            answered += 1 if at <= seconds else 0
            points += [(x, top + height - answered / 300 * height)]
        return points + [(left + width, points[-1][1])]

    waits = [max(0.05, (call // 30) * 1.005 + 0.05) for call in range(300)]
    p.curve(steps(waits), GREEN)
    p.curve(steps(refused), BLUE)
    p.curve(steps(fallen), RED)
    last = max(range(300), key=waits.__getitem__)
    p.text(left + 8, top + 14, "they wait: 300 calls are sent,", GREEN, 12)
    p.text(left + 8, top + 30, f"the last is answered after {waits[last]:.0f} s", GREEN, 12)
    p.text(left + 250, top + 78, "refused, and tried again:", BLUE, 12)
    p.text(left + 250, top + 94, f"{sent_refused:,} calls are sent, the", BLUE, 12)
    p.text(left + 250, top + 110, f"last is answered after {max(refused):.0f} s", BLUE, 12)
    p.text(left + 190, top + 180, f"no limit: the service falls over, {sent_fallen:,} calls", RED, 12)
    p.text(left + 190, top + 196, f"are sent, the last is answered after {max(fallen):.0f} s", RED, 12)
    p.text(left, 326, "Computed: 30 calls a second; clients try again after about 1, 2, 4, … 32 s", SOFT, 12)
    return p


def chart(p, left, top, width, height, x_max, y_max, y_name, x_name, x_step):
    for part in range(4):
        y = top + height - part / 3 * height
        p.line(left, y, left + width, y, "#dde2e7", 1)
        p.text(left - 8, y + 4, f"{y_max * part // 3}", SOFT, 12, "end")
    for x in range(0, x_max + 1, x_step):
        at = left + x / x_max * width
        p.line(at, top + height, at, top + height + 5, LINE, 1)
        p.text(at, top + height + 19, f"{x}", SOFT, 12, "middle")
    p.text(left - 40, top - 16, y_name, SOFT, 12)
    p.text(left + width, top + height + 37, x_name, SOFT, 12, "end")


def windows():
    p = Picture("Fixed windows let 2 N through around an edge, sliding windows never more than N in any span", 330)
    left, second = 120, 180.0
    for row, (name, y) in enumerate([("fixed", 70), ("sliding", 196)]):
        p.text(20, y + 26, name, bold=True)
        for edge in range(4):
            x = left + edge * second
            if row == 0:
                p.line(x, y - 16, x, y + 46, LINE, 1, dashed=True)
            p.text(x, y + 64, f"{edge} s", SOFT, 12, "middle")
        p.line(left - 20, y + 46, left + 3 * second + 10, y + 46, SOFT, 1.2)
    bursts = {70: [0.80, 1.02], 196: [0.80, 1.805]}
    for y, starts in bursts.items():
        for start in starts:
            for call in range(30):
                column, row = divmod(call, 5)
                p.dot(left + (start + column * 0.028) * second + 2, y + 38 - row * 8, ORANGE if y == 70 and start > 1 else BLUE, 3)
    p.text(20, 28, "The limit is 30 calls in a second. 60 calls come at 0.8 s.", SOFT)
    p.box(left + 0.79 * second, 48, 0.42 * second, 76, "none", RED)
    p.text(left + 1.26 * second, 62, "60 calls in 0.4 s: 30 of one window,", RED, 12)
    p.text(left + 1.26 * second, 78, "30 of the next, and each is “at most 30”", RED, 12)
    p.line(left + 0.80 * second, 180, left + 1.805 * second, 180, GREEN, 1.6)
    for at in (0.80, 1.805):
        p.line(left + at * second, 175, left + at * second, 185, GREEN, 1.6)
    p.text(left + 1.30 * second, 172, "1 s and the guard", GREEN, 12, "middle")
    p.text(left + 2.02 * second, 204, "a slot comes back when the call", GREEN, 12)
    p.text(left + 2.02 * second, 220, "in it is one window old", GREEN, 12)
    p.text(20, 300, "fixed: the count starts again at each edge", SOFT, 12)
    p.text(20, 317, "sliding: every span of a second, wherever it begins, has at most 30", SOFT, 12)
    return p


def stamps():
    p = Picture("With the stamp sent, a call counts when it leaves; with replied, when its reply has begun", 258)
    y, parts = 92, [("waits", 110, 250, FILL), ("on its way", 250, 330, "#e6effa"), ("at the backend", 330, 520, "#f7ece4")]
    for words, start, end, fill in parts:
        p.box(start, y, end - start, 30, fill, LINE, 0)
        p.text((start + end) / 2, y + 20, words, INK, 12, "middle")
    p.text(20, y + 20, "one call", bold=True)
    for x, words in [(110, "arrives"), (250, "sent"), (520, "first byte of reply")]:
        p.line(x, y - 12, x, y + 30, SOFT, 1.2)
        p.text(x, y - 18, words, SOFT, 12, "middle")
    for row, (name, start, length, colour) in enumerate([("sent", 250, 150, BLUE), ("replied", 520, 150, GREEN)]):
        top = 152 + row * 44
        p.text(20, top + 18, name, colour, 13, bold=True)
        if start == 520:
            p.box(250, top, 270, 26, "#f3f5f7", LINE, 0, dashed=True)
            p.text(385, top + 17, "its slot is taken", SOFT, 12, "middle")
        p.box(start, top, length, 26, "#dcebf9" if row == 0 else "#dcefe3", colour, 0)
        p.text(start + length / 2, top + 17, "window and guard", INK, 12, "middle")
        p.text(start + length + 8, top + 17, "free" if row == 0 else "", colour, 12)
    p.text(20, 30, "How long a call takes a slot of the window. After that, another call may leave.", SOFT)
    return p


# Calls answered at each second of the storm, from the output of `tidegate demo --once` on two shared cores.
IN_TURN = [(0, 0), (1, 30), (2, 60), (3, 90), (4, 120), (5, 150), (6, 180), (7, 210), (8, 240), (9, 270), (9.3, 300)]
JITTER = [(0, 0), (1, 10), (2, 40), (3, 70), (4, 100), (5, 130), (6, 160), (7, 190), (8, 220), (9, 250), (10, 275), (11, 287), (11.9, 300)]


def jitter_or_in_turn():
    p = Picture("In turn, the storm is over after 9.3 s; with jitter, its end takes until 11.9 s", 312)
    left, top, width, height = 62, 44, 600, 196
    chart(p, left, top, width, height, 12, 300, "calls answered", "seconds after the storm", 2)
    for points, colour in [(IN_TURN, GREEN), (JITTER, ORANGE)]:
        p.curve([(left + x / 12 * width, top + height - y / 300 * height) for x, y in points], colour)
        for x, y in points:
            p.dot(left + x / 12 * width, top + height - y / 300 * height, colour, 3)
    p.text(left + 180, top + 58, "in_turn: 9.3 s", GREEN, 13, bold=True)
    p.text(left + 404, top + 88, "jitter: 11.9 s", ORANGE, 13, bold=True)
    p.text(left + 404, top + 106, "at its end, calls sleep", ORANGE, 12)
    p.text(left + 404, top + 122, "while the limit has room", ORANGE, 12)
    p.text(left, 296, "Measured: 300 calls at once, 30 in any second, 10 at once (tidegate demo)", SOFT, 12)
    return p


def fairness():
    p = Picture("By arrival, the second caller waits behind the whole backlog of the first; in turn, it goes every second time", 300)
    rows = [
        ("arrival", "AAAAAAAAAAAABBB", "12 calls of A, then 3 of B"),
        ("by arrival", "AAAAAAAAAAAABBB", "B waits for all that A has"),
        ("in turn", "ABABABAAAAAAAAA", "B is done after six calls"),
        ("weight 4 : 1", "BAAAABAAAABAAAA", "A has weight 4, B has 1"),
    ]
    for row, (name, calls, says) in enumerate(rows):
        y = 54 + row * 60 + (14 if row else 0)
        p.text(20, y + 19, name, bold=True)
        for column, caller in enumerate(calls):
            x = 130 + column * 24
            p.box(x, y, 21, 26, "#dcebf9" if caller == "A" else "#f9e3d3", BLUE if caller == "A" else ORANGE, 3)
            p.text(x + 10.5, y + 18, caller, BLUE if caller == "A" else ORANGE, 12, "middle", True)
        p.text(502, y + 18, says, SOFT, 12)
    p.line(20, 98, 680, 98, "#dde2e7", 1)
    p.text(130, 36, "time, and order of service", SOFT, 12)
    p.line(296, 32, 470, 32, arrow=True)
    return p


def leases_and_quotas():
    p = Picture("A lease is a share of a capacity until a moment; a quota is an amount for each window, drawn in portions", 372)
    p.text(20, 30, "a lease", bold=True)
    p.text(90, 30, "the server divides a rate: 30 calls a second, at every moment", SOFT, 12)
    shares = [("left", [(0, 10), (150, 10), (300, 20), (450, 20)], "#dcebf9", BLUE), ("right", [(0, 20), (150, 20), (300, 10), (450, 10)], "#dcefe3", GREEN)]
    for index in range(4):
        x, y = 90 + index * 150, 46
        for name, parts, fill, colour in shares:
            share = parts[index][1]
            p.box(x, y, 144, share * 3, fill, colour, 2)
            p.text(x + 72, y + share * 1.5 + 4.5, f"{name}: {share} a second", INK, 12, "middle")
            y += share * 3
        p.line(x, 40, x, 146, LINE, 1, dashed=True)
    p.line(90, 150, 690, 150, arrow=True)
    p.text(90, 167, "each lease ends by itself", SOFT, 12)
    p.text(390, 167, "asked again: right wants less, left gets more", SOFT, 12)
    p.text(20, 210, "a quota", bold=True)
    p.text(90, 210, "the store counts an amount: 100 calls in each window, spent at any speed", SOFT, 12)
    for index in range(2):
        x = 90 + index * 300
        p.line(x, 222, x, 334, LINE, 1, dashed=True)
        p.named(x + 8, 232, 280, 28, f"window {index + 7}: 100 calls", fill="#f3f5f7")
        draws = [("own 25", 0, 66, "#b9d6f2", BLUE), ("own 25", 66, 66, "#bfe3cc", GREEN)]
        draws += [("draw 30", 132, 80, "#dcebf9", BLUE), ("draw 20", 212, 68, "#dcefe3", GREEN)] if index == 0 else [
            ("draw 12", 132, 42, "#dcebf9", BLUE), ("draw 38", 174, 106, "#dcefe3", GREEN)]
        for words, start, width, fill, colour in draws:
            p.box(x + 8 + start, 264, width, 30, fill, colour, 2)
            p.text(x + 8 + start + width / 2, 283, words if width > 50 else "12", INK, 12, "middle")
    p.line(90, 312, 690, 312, arrow=True)
    p.text(98, 330, "at each edge, the rest of the old window is gone", SOFT, 12)
    p.box(90, 346, 12, 12, "#dcebf9", BLUE, 2)
    p.text(108, 357, "the left sidecar", INK, 12)
    p.box(230, 346, 12, 12, "#dcefe3", GREEN, 2)
    p.text(248, 357, "the right sidecar", INK, 12)
    return p


def places():
    p = Picture("The two places for Tidegate in front of the z/VM SDK server: H and S", 268)
    p.named(20, 40, 110, 60, "nova", "and others")
    p.named(176, 40, 110, 60, "Tidegate", "H, port 8081", fill="#dcefe3", stroke=GREEN)
    p.named(332, 40, 130, 60, "Apache, sdkwsgi", "port 8080")
    p.named(20, 166, 110, 60, "local clients", "of the socket")
    p.named(332, 166, 130, 60, "Tidegate", "S, port 2000", fill="#dcebf9", stroke=BLUE)
    p.named(540, 166, 130, 60, "sdkserver", "port 2001, SMAPI", fill="#f7ece4", stroke="#d9b99f")
    p.line(132, 70, 174, 70, arrow=True)
    p.line(288, 70, 330, 70, arrow=True)
    p.line(397, 102, 397, 164, arrow=True)
    p.line(464, 196, 538, 196, arrow=True)
    p.line(132, 196, 330, 196, arrow=True)
    p.text(230, 118, "sees addresses and tokens,", GREEN, 12, "middle")
    p.text(230, 134, "and only what comes over HTTP", GREEN, 12, "middle")
    p.text(397, 246, "sees every call once,", BLUE, 12, "middle")
    p.text(397, 261, "but not who asks over HTTP", BLUE, 12, "middle")
    return p


def tunnels():
    p = Picture("On a tcp listener a call is a connection: it waits before the backend is connected, then holds its slot to the end", 222)
    for row, (name, waits, ends) in enumerate([("client 1", 0, 330), ("client 2", 0, 520), ("client 3", 190, 470)]):
        y = 46 + row * 46
        p.text(20, y + 19, name, bold=True)
        if waits:
            p.box(110, y, waits + 30, 28, FILL, LINE, 3, dashed=True)
            p.text(120, y + 19, "accepted, waits for a slot", SOFT, 12)
        start = 110 + (waits + 30 if waits else 0)
        p.box(start, y, 110 + ends - start, 28, "#dcebf9", BLUE, 3)
        p.text(start + 10, y + 19, "connected to the backend: one slot", INK, 12)
    p.line(330 + 110, 38, 330 + 110, 74, RED, 1.6)
    p.text(446, 40, "closes: its slot is free", RED, 12)
    p.text(20, 204, "outstanding = 2, so two connections at once. What goes through a connection is not looked at.", SOFT, 12)
    return p


def hand_over():
    p = Picture("How an old process hands over to a new one: sockets and the right to admit calls go, connections stay", 330)
    for x, name in ((170, "old process"), (530, "new process")):
        p.named(x - 70, 14, 140, 30, name)
        p.line(x, 44, x, 312, LINE, dashed=True)
    steps = [
        (64, 1, "I have read my config", SOFT),
        (108, -1, "sockets, calls that run and wait, state", BLUE),
        (152, 1, "I accept and admit", SOFT),
        (196, -1, "a call waits", BLUE),
        (226, 1, "its turn has come", GREEN),
        (256, -1, "sent, replied, done", BLUE),
    ]
    for y, direction, words, colour in steps:
        # 1 is from the new process to the old one.
        x1, x2 = (524, 176) if direction > 0 else (176, 524)
        p.line(x1, y + 8, x2, y + 8, colour, arrow=True)
        p.text(350, y + 2, words, INK, 12, "middle")
    notes = [
        (20, 100, "admits nothing more,"),
        (20, 116, "frees the ledger"),
        (20, 168, "accepts nothing more,"),
        (20, 184, "keeps its connections"),
        (20, 290, "ends with its last call"),
        (546, 132, "claims the ledger,"),
        (546, 148, "counts all of it"),
        (546, 206, "one order, one set of"),
        (546, 222, "limits for the calls of"),
        (546, 238, "both processes"),
    ]
    for x, y, words in notes:
        p.text(x, y, words, SOFT, 12)
    return p


PICTURES = {
    "promises": promises,
    "waiting-beats-refusing": waiting_beats_refusing,
    "windows": windows,
    "stamps": stamps,
    "jitter-or-in-turn": jitter_or_in_turn,
    "fairness": fairness,
    "leases-and-quotas": leases_and_quotas,
    "hand-over": hand_over,
    "zvm-places": places,
    "tcp-connections": tunnels,
}
SCREENS = {
    "top-in-a-storm": "tidegate top",
    "explain-a-call": "tidegate explain",
    "top-of-a-quota": "tidegate top",
}


def main():
    made = {f"{name}.svg": draw().svg() for name, draw in PICTURES.items()}
    for name, title in SCREENS.items():
        made[f"{name}.svg"] = terminal.draw(title, (HERE / f"{name}.screen.txt").read_text(encoding="utf-8"))
    wrong = 0
    for name, svg in made.items():
        path = HERE / name
        if "--check" not in sys.argv:
            path.write_text(svg, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != svg:
            wrong += 1
            print(f"docs/pictures/{name} is not what its source says: run python3 docs/pictures/make.py")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
