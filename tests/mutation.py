"""Slips of the finger, for files that people write by hand."""

from __future__ import annotations

import random


def mutated(text: str, dice: random.Random) -> str:
    """`text` with one or two mistakes in it."""
    lines = text.splitlines()
    for _ in range(dice.randint(1, 2)):
        index = dice.randrange(1, len(lines))
        line = lines[index]
        match dice.randrange(9):
            case 0:
                del lines[index]
            case 1:
                lines.insert(index, line)
            case 2:
                lines[index] = " " * dice.randint(1, 3) + line
            case 3:
                lines[index] = line.lstrip()
            case 4:
                place = dice.randrange(max(1, len(line)))
                lines[index] = line[:place] + line[place + 1 :]
            case 5:
                place = dice.randrange(max(1, len(line)))
                lines[index] = line[:place] + dice.choice("\"'{}[]:,#&*!|>%@`\t\\-x0\0é") + line[place:]
            case 6:
                lines[index] = (
                    line.split(":")[0]
                    + ": "
                    + dice.choice(["null", "[]", "{}", "5", "-1", "yes", "'x'", "{{ x }}", "[[1]]"])
                )
            case 7:
                other = dice.randrange(1, len(lines))
                lines[index], lines[other] = lines[other], lines[index]
            case 8:
                lines[index] = line.replace(":", "", 1)
    return "\n".join(lines) + "\n"
