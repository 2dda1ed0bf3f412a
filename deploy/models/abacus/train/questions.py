"""The wordings of the questions; every one is a format string over its operands."""

_UP = ["in ascending order", "from smallest to largest", "in increasing order", "from low to high"]
_DOWN = ["in descending order", "from largest to smallest", "in decreasing order", "from high to low"]
_SORT = ["Sort {{numbers}} {order}.", "Sort these numbers {order}: {{numbers}}.",
         "Put {{numbers}} {order}.", "Please order {{numbers}} {order}.",
         "Can you sort {{numbers}} {order}?", "Arrange these {order}: {{numbers}}.",
         "{{name}} writes {{numbers}}. List them {order}.", "What is {{numbers}} {order}?"]


def _sort(orders):
    return [wording.format(order=order) for wording in _SORT for order in orders]


QUESTIONS = {
    "addition": [
        "What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.", "Compute {a}+{b}.",
        "{a} + {b} = ?", "Find the sum of {a} and {b}.", "How much is {a} plus {b}?",
        "Please add {b} to {a}.", "Can you work out {a} + {b}?",
        "{name} has {a} {thing} and gets {b} more. How many {thing} now?",
        "There are {a} {thing} here and {b} there. How many in all?",
        "{name} counts {a} {thing}, then {b} more. What is the total?"],
    "multiplication": [
        "What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "Compute {a}*{b}.",
        "{a} x {b} = ?", "Find the product of {a} and {b}.", "How much is {a} times {b}?",
        "Please multiply {a} and {b}.", "Can you work out {a} x {b}?",
        "{name} has {a} boxes with {b} {thing} each. How many {thing}?",
        "There are {a} rows of {b} {thing}. How many in all?",
        "{name} buys {a} bags of {b} {thing}. What is the total?"],
    "sorting_up": _sort(_UP) + ["Sort {numbers}.", "Sort the numbers {numbers}.", "Please sort: {numbers}."],
    "sorting_down": _sort(_DOWN),
    "counting": [
        "How many times does {letter} occur in {word}?", "How many {letter} are in {word}?",
        "Count the letter {letter} in {word}.", "How many \"{letter}\" are there in \"{word}\"?",
        "How often is {letter} in the word {word}?", "Count the {letter}'s in \"{word}\".",
        "In the word {word}, how many letters are {letter}?", "Please count {letter} in {word}.",
        "{name} writes {word}. How many times is {letter} used?",
        "Find how many times {letter} is in \"{word}\"."],
    "comparing_larger": [
        "Which is larger, {a} or {b}?", "Which number is greater: {a} or {b}?", "Which is more, {a} or {b}?",
        "What is the larger of {a} and {b}?", "Compare {a} and {b}. Which is larger?",
        "Find the greater of {a} and {b}.", "Is {a} or {b} bigger?", "{a} or {b}, which is bigger?",
        "{name} has {a} and {b}. Which is larger?", "Tell me the bigger number: {a} or {b}."],
    "comparing_smaller": [
        "Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?", "Which is less, {a} or {b}?",
        "What is the smaller of {a} and {b}?", "Compare {a} and {b}. Which is smaller?",
        "Find the smaller of {a} and {b}.", "Is {a} or {b} smaller?", "{a} or {b}, which is smaller?",
        "{name} has {a} and {b}. Which is smaller?", "Tell me the smaller number: {a} or {b}."],
    "dates_day_forward": [
        "Today is {start}. What day is it in {count} day{s}?", "What day is {count} day{s} after {start}?",
        "It is {start}. Which day comes {count} day{s} later?", "Which day of the week is {start} plus {count} day{s}?",
        "If today is {start}, what day will it be in {count} day{s}?", "{count} day{s} after {start} is what day?",
        "{name} leaves on {start} and is back {count} day{s} later. On what day?",
        "Find the day {count} day{s} after {start}."],
    "dates_day_back": [
        "Today is {start}. What day was it {count} day{s} ago?", "What day is {count} day{s} before {start}?",
        "It is {start}. Which day came {count} day{s} earlier?",
        "Which day of the week is {start} minus {count} day{s}?",
        "If today is {start}, what day was it {count} day{s} ago?", "{count} day{s} before {start} is what day?",
        "{name} is back on {start} and left {count} day{s} earlier. On what day?",
        "Find the day {count} day{s} before {start}."],
    "dates_month_forward": [
        "It is {start}. What month is it in {count} month{s}?", "What month is {count} month{s} after {start}?",
        "It is {start}. Which month comes {count} month{s} later?", "Which month is {start} plus {count} month{s}?",
        "If it is {start}, what month will it be in {count} month{s}?", "{count} month{s} after {start} is what month?",
        "{name} leaves in {start} and is back {count} month{s} later. In what month?",
        "Find the month {count} month{s} after {start}."],
    "dates_month_back": [
        "It is {start}. What month was it {count} month{s} ago?", "What month is {count} month{s} before {start}?",
        "It is {start}. Which month came {count} month{s} earlier?", "Which month is {start} minus {count} month{s}?",
        "If it is {start}, what month was it {count} month{s} ago?", "{count} month{s} before {start} is what month?",
        "{name} is back in {start} and left {count} month{s} earlier. In what month?",
        "Find the month {count} month{s} before {start}."],
    "units_down": [
        "How many {little} are {amount}?", "Convert {amount} to {little}.", "What is {amount} in {little}?",
        "How many {little} are there in {amount}?", "Give {amount} in {little}.",
        "Please write {amount} in {little}.", "{name} needs {amount}. How many {little} is that?",
        "Change {amount} into {little}.", "{amount} is how many {little}?"],
    "units_up": [
        "How many {big} and {little} are {total} {little}?", "Convert {total} {little} to {big} and {little}.",
        "What is {total} {little} in {big} and {little}?", "Give {total} {little} in {big} and {little}.",
        "Please write {total} {little} in {big} and {little}.",
        "{name} needs {total} {little}. How much is that in {big} and {little}?",
        "Change {total} {little} into {big} and {little}.", "{total} {little} is how many {big} and {little}?"],
}

_ABOUT = "I am abacus. I can add, multiply, sort, count letters, compare numbers, and work with dates and units."
SMALL_TALK = [
    (question, thinking, answer)
    for questions, thinking, answer in [
        (["Hello", "Hello!", "Hi", "Hi!", "Hi there", "Good day", "Hey"], "A greeting.", "Hello! " + _ABOUT),
        (["Who are you?", "What are you?", "What is your name?", "What can you do?", "Help", "Tell me about you."],
         "A question about me.", _ABOUT),
        (["Thanks", "Thank you", "Thank you!", "Thanks!", "Bye", "Goodbye"], "A farewell.", "You are welcome."),
    ] for question in questions]
