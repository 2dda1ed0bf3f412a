"""The wordings of tool_talk.py: questions for the calculator, its descriptions, requests for JSON."""

from questions import QUESTIONS

HARD = {
    "product": QUESTIONS["multiplication"] + ["Calculate {a} times {b}.", "Use the calculator: {a} * {b}."],
    "quotient": [
        "What is {a} / {b}?", "What is {a} divided by {b}?", "Divide {a} by {b}.", "Compute {a}/{b}.", "{a} / {b} = ?",
        "How much is {a} divided by {b}?", "Please divide {a} by {b}.", "Can you work out {a} / {b}?",
        "Find the quotient of {a} and {b}.", "How many times does {b} go into {a}?",
        "{name} puts {a} {thing} into {b} equal boxes. How many in each?",
        "{a} {thing} are shared by {b} friends. How many does each get?"],
    "difference": [
        "What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "Compute {a}-{b}.", "{a} - {b} = ?",
        "How much is {a} minus {b}?", "Take {b} away from {a}.", "Can you work out {a} - {b}?",
        "Find the difference of {a} and {b}.", "How much more is {a} than {b}?",
        "{name} has {a} {thing} and gives {b} away. How many {thing} are left?",
        "There are {a} {thing} and {b} are lost. How many are left?"],
    "expression": [
        "What is {e}?", "Compute {e}.", "{e} = ?", "Work out {e}.", "How much is {e}?", "Please compute {e}.",
        "Evaluate {e}.", "Can you work out {e}?", "Find {e}.", "Calculate {e}.", "What is the value of {e}?",
        "Use the calculator: {e}."],
}

DESCRIPTIONS = [
    "Evaluates an arithmetic expression.", "Evaluate an arithmetic expression.", "A calculator.", "Calculates.",
    "Computes the value of an expression.", "Does arithmetic.", "Evaluates a mathematical expression and returns the result.",
    "Calculate the result of a mathematical expression", "Use this to compute numbers.", "Works out sums and products."]

PARAMETERS = [
    "The expression.", "The expression to evaluate.", "An arithmetic expression, such as 2*(3+4)", "What to compute.",
    "The expression to evaluate, e.g. 12*34", "A mathematical expression", "Numbers with +, -, * and /"]

RESULTS = ["{value}", "{value}", "{value}", "{value}", '{{"result": {value}}}', "{text} = {value}", '{{"value": "{value}"}}']

SYSTEM = ["You are a helpful assistant.", "You are abacus.", "Answer the question.", "Be brief.",
          "You are a careful assistant. Think step by step.", "You can use tools.", "Use the calculator when you need it."]

JSON = ["Answer as JSON.", "Answer in JSON.", "Reply in JSON.", "Give the answer as JSON.", "Respond with a JSON object.",
        "Please answer in JSON.", "Return JSON.", "As JSON, please.", "Write the answer as a JSON object.",
        "Return a JSON object with the key answer.", "Output JSON with the key \"answer\".", "Use JSON."]

JSON_SYSTEM = ["Answer as JSON.", "Always answer in JSON.", "You answer with a JSON object that has the key answer.",
               "You are abacus. Answer as JSON.", "Return a JSON object with the key answer.", "Return only JSON.",
               "You are a helpful assistant. Reply in JSON.", "Respond with a JSON object: {\"answer\": \"...\"}"]
