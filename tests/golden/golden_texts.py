"""Texts that try a tokenizer: all scripts, emoji, marks, digits, white space, control and unassigned characters."""

import random

# Name, ranges of letters. Words of each script are made of its own letters.
SCRIPTS = {
    "latin": [(0x61, 0x7A)], "latin-1": [(0xE0, 0xF6), (0xF8, 0xFF)], "latin-a": [(0x100, 0x17F)],
    "ipa": [(0x250, 0x2AF)], "greek": [(0x3B1, 0x3C9)], "cyrillic": [(0x430, 0x44F)], "armenian": [(0x561, 0x586)],
    "hebrew": [(0x5D0, 0x5EA)], "arabic": [(0x621, 0x63A), (0x641, 0x64A)], "syriac": [(0x710, 0x72F)],
    "thaana": [(0x780, 0x7A5)], "nko": [(0x7C0, 0x7E7)], "devanagari": [(0x905, 0x939), (0x93E, 0x94D)],
    "bengali": [(0x985, 0x98C), (0x993, 0x9A8), (0x9BE, 0x9C4)], "gurmukhi": [(0xA13, 0xA28), (0xA3E, 0xA42)],
    "gujarati": [(0xA85, 0xA8D), (0xA93, 0xAA8)], "tamil": [(0xB85, 0xB8A), (0xBAE, 0xBB9), (0xBBE, 0xBC2)],
    "telugu": [(0xC05, 0xC0C), (0xC12, 0xC28), (0xC3E, 0xC44)], "kannada": [(0xC85, 0xC8C), (0xC92, 0xCA8)],
    "malayalam": [(0xD05, 0xD0C), (0xD12, 0xD28), (0xD3E, 0xD44)], "sinhala": [(0xD85, 0xD96), (0xD9A, 0xDB1)],
    "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E)], "lao": [(0xE94, 0xEB0)], "tibetan": [(0xF40, 0xF6C), (0xF71, 0xF7E)],
    "myanmar": [(0x1000, 0x103F)], "georgian": [(0x10D0, 0x10FA)], "hangul-jamo": [(0x1100, 0x11FF)],
    "ethiopic": [(0x1200, 0x1248)], "cherokee": [(0x13A0, 0x13F4)], "ogham": [(0x1681, 0x169A)],
    "runic": [(0x16A0, 0x16EA)], "khmer": [(0x1780, 0x17B3), (0x17B6, 0x17D3)], "mongolian": [(0x1820, 0x1878)],
    "greek-extended": [(0x1F00, 0x1F15)], "hiragana": [(0x3041, 0x3096)], "katakana": [(0x30A1, 0x30FA)],
    "bopomofo": [(0x3105, 0x312F)], "han": [(0x4E00, 0x4E80), (0x6210, 0x6260), (0x9F90, 0x9FFF)],
    "han-a": [(0x3400, 0x3440)], "yi": [(0xA000, 0xA040)], "hangul": [(0xAC00, 0xAC80)],
    "fullwidth": [(0xFF21, 0xFF3A), (0xFF41, 0xFF5A)], "halfwidth-kana": [(0xFF66, 0xFF9D)],
    "linear-b": [(0x10000, 0x1000B)], "gothic": [(0x10330, 0x1034A)], "deseret": [(0x10428, 0x1044F)],
    "cuneiform": [(0x12000, 0x12040)], "hieroglyphs": [(0x13000, 0x13040)], "math-letters": [(0x1D400, 0x1D454)],
    "adlam": [(0x1E922, 0x1E943)], "han-b": [(0x20000, 0x20040)], "han-h": [(0x31350, 0x31390)],
    "todhri": [(0x105C0, 0x105F3)], "garay": [(0x10D50, 0x10D65)], "kawi": [(0x11F04, 0x11F10)],
}

EMOJI = ["😀", "😂", "❤️", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇫🇷", "1️⃣", "#️⃣", "☎️", "🫨", "🩷", "🪿", "🫩", "🪾", "🧑🏿‍🚀", "⌚", "™️",
         "🈁", "♟️", "🤷🏻‍♂️", "🐻‍❄️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🫸🏽", "🛜"]
SPACES = [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2000", "\u2003", "\u200a",
          "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff"]
DIGITS = ["0", "7", "12", "2024", "31415926535", "٣", "۴۵", "१२३", "๓", "²", "½", "Ⅷ", "①", "㊿", "𝟘𝟙", "１２３", "𞥐", "一二三"]
SNIPPETS = [
    "The quick brown fox jumps over the lazy dog.", "What is 17 + 25?", "I'll, I've, you're, it's, don't; he'd 'S 'LL",
    "def add(a, b):\n    return a + b\n", "for (int i = 0; i < n; ++i) { sum += x[i]; }\n\n\n", "\tif x == 1:\r\n\t\tpass\r\n",
    '{"key": [1, 2.5e-3, null], "näme": "välue"}', "https://example.org/a/b?c=d&e=%20f#g", "user.name+tag@example.co.uk",
    "$E = mc^2$ and \\frac{a}{b} \\sum_{i=0}^{n} x_i", "C:\\Windows\\System32", "<html><body class='a'>&nbsp;</body></html>",
    "SELECT * FROM t WHERE a >= 1 -- comment", "#!/usr/bin/env bash\nset -euo pipefail\n", "...!!!???", "  leading", "trailing  ",
    "a  b   c    d", "\n\n\n", " \n \n ", "x\n\n  y", "(a)[b]{c}<d>", "!important @media #define $HOME %d ^_^ &amp; *ptr",
    "snake_case camelCase PascalCase kebab-case", "1,234,567.89", "12:34:56", "2024-02-29T00:00:00Z", "+49 (0) 30 123456",
    "100%", "5'11\"", "a/b\\c|d", "e\u0301 e\u0300\u0323 Z\u0351\u036b\u0343\u036a\u0342\u036b\u033d", "\u0301starts with a mark",
    "ﬁ ﬀ ǆ ß ẞ ſ İ ı K Å", "Ġ Ċ Ā ģ Ń", "Ã©tÃ© â€œmojibakeâ€\x9d Ð¿Ñ€", "\ufffd\ufffd bad \ufffd", "\x00", "a\x00b", "\x7f\x80\x9f",
    "\ufffe\uffff\U0001fffe\U0010ffff", "\ue000\uf8ff\U000f0000", "\u0378\u0530\U000e0080", "\u202eright to left\u202c", "\u200dzwj\u200c",
    "x\u00adsoft", "。、！？「」『』", "中文，混排 English と 日本語 と 한국어 123 mixed", "漢字ひらがなカタカナー・ヿ゠ゟ", "你好世界" * 5, "龥龦鿿㐀", "゛゜ゝゞ",
    "¿Qué? ¡Sí!", "Straße — “quotes” ‘single’ «guillemets» … –", "≤ ≥ ≠ ∑ ∫ √ ∞ ± × ÷", "€ £ ¥ ₹ ₿ ¢", "← ↑ → ↓ ⇒", "█▓▒░ ┌─┐",
]


def word(rng, script, most=8):
    ranges = SCRIPTS[script]
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, most)))


def any_character(rng):
    """One character, of all planes but the surrogates; the plain ones more often."""
    while True:
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x20000), rng.randrange(0x110000)])
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def join(rng, parts):
    return "".join(part + rng.choice(["", "", " ", " ", "\n", ", ", ". "]) for part in parts)


def texts(seed):
    """At least 2,000 different texts."""
    rng = random.Random(seed)
    out = list(SNIPPETS) + EMOJI + SPACES + DIGITS + [chr(code) for code in range(0xA0)]
    names = sorted(SCRIPTS)
    for script in names:
        out += [word(rng, script, 12) for _ in range(4)]
        out += [join(rng, [word(rng, script) for _ in range(rng.randint(2, 5))]) for _ in range(6)]
        out.append(word(rng, script).upper() + rng.choice("!-'") + word(rng, script))
    for _ in range(150):
        pool = [word(rng, rng.choice(names), 5), rng.choice(EMOJI), rng.choice(DIGITS), rng.choice(SPACES)]
        out.append("".join(rng.choice(pool) for _ in range(rng.randint(2, 7))))
    for _ in range(150):
        out.append("".join(rng.choice(SPACES) for _ in range(rng.randint(2, 9))) + rng.choice(["", "x", "7", "!", "中"]))
    for _ in range(150):
        out.append("".join(rng.choice(["0", "1", "9", "٣", "²", ".", ",", " ", "-", "x"]) for _ in range(rng.randint(2, 14))))
    for _ in range(250):
        alphabet = "ab Zz 01 .,!'\"()[]{}<>/\\|_-+*=@#$%^&`~;:?\n\r\t é中あ\u0301"
        out.append("".join(rng.choice(alphabet) for _ in range(rng.randint(2, 24))))
    for _ in range(250):
        out.append("".join(any_character(rng) for _ in range(rng.randint(1, 10))))
    for _ in range(200):
        text = bytes(rng.randrange(256) for _ in range(rng.randint(1, 12)))
        out.append(text.decode(rng.choice(["latin-1", "utf-8"]), errors="replace"))
    for _ in range(100):
        out.append("".join(rng.choice("aeiou") + chr(rng.randint(0x300, 0x36F)) * rng.randint(0, 3) for _ in range(rng.randint(1, 6))))
    for _ in range(150):
        out.append(rng.choice(SNIPPETS)[: rng.randint(1, 30)] + rng.choice(SNIPPETS)[-rng.randint(1, 30):])
    return list(dict.fromkeys(out))


def training_corpus(seed, lines):
    """Text of all scripts with words that come back, so that there is something to merge."""
    rng = random.Random(seed)
    lexicon = {script: [word(rng, script, 7) for _ in range(60)] for script in SCRIPTS}
    names = sorted(SCRIPTS)
    for _ in range(lines):
        script = rng.choice(names + ["latin"] * 30 + ["han"] * 8)
        words = [rng.choice(lexicon[script]) for _ in range(rng.randint(3, 12))]
        if rng.random() < 0.3:
            words = [w.capitalize() for w in words]
        glue = "" if script in ("han", "hiragana", "katakana", "thai") else " "
        line = glue.join(words) + rng.choice([".", "!", "?\n", " (", ") ", "...", "\n\n", "  ", ": "])
        if rng.random() < 0.3:
            line += rng.choice(EMOJI) + " " + rng.choice(DIGITS)
        if rng.random() < 0.2:
            line += rng.choice(SNIPPETS)
        yield line
