"""Prompts for the starter head beyond the given file: code, letters, extraction, explanations, plans, roles.

Templates with slots, filled by a seeded draw, so that everyone makes the same list. None repeats a question of MT-Bench.
"""

import random
from itertools import product

TASKS = (
    "reverses a string", "checks whether a number is prime", "counts the words in a text", "sorts a list of numbers",
    "finds the largest item of a list", "computes a factorial", "merges two sorted lists", "reads a CSV file",
    "removes duplicates from a list", "splits a text into sentences", "computes Fibonacci numbers",
    "checks whether a word is a palindrome", "converts Celsius to Fahrenheit", "counts vowels", "flattens nested lists",
    "rounds prices to cents", "implements a stack", "implements a queue with two stacks", "does a binary search",
    "parses a date", "validates an email address", "computes the greatest common divisor", "transposes a matrix",
    "groups words by their first letter", "finds all anagrams of a word", "rotates an array", "draws a triangle of stars",
    "simulates rolling two dice", "generates a random password", "downloads a web page", "counts lines in a file",
    "finds the shortest path in a graph", "traverses a binary tree", "computes the edit distance of two words",
    "solves the knapsack problem", "prints a calendar", "computes prime factors", "encodes Roman numerals",
)
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C++", "Go", "SQL", "Rust", "a shell script")
CODE = (
    "Write a {language} function that {task}.", "Implement code in {language} that {task}. Explain how it works.",
    "How do I write a program in {language} that {task}?", "Write unit tests for a {language} function that {task}.",
)
LETTERS = ("email", "letter", "short message", "blog post", "speech", "product description", "news article", "review",
           "poem", "short story", "cover letter", "diary entry", "social media post", "summary")
AUDIENCES = ("my manager", "a customer", "my teacher", "a friend", "the whole team", "a landlord", "young readers",
             "a professor", "the city council", "my grandmother", "new employees", "a hiring manager")
SUBJECTS = ("a delayed delivery", "a week by the sea", "a new phone", "moving to another city", "a birthday party",
            "working from home", "a broken heating", "the end of a project", "learning to cook", "a lost suitcase",
            "protecting forests", "a job in data science", "feedback on a report", "a school trip", "a robot that dreams",
            "the first snow", "an old lighthouse", "a rise in salary", "electric cars", "a book club", "a dragon and a clerk")
TOPICS = (
    "photosynthesis", "gravity", "inflation", "the French Revolution", "neural networks", "DNA replication", "black holes",
    "supply and demand", "plate tectonics", "vaccines", "the water cycle", "magnetism", "democracy", "copyright",
    "entropy", "the Silk Road", "speech recognition", "the immune system", "stoic philosophy", "tariffs", "batteries",
    "the Industrial Revolution", "gene editing", "ocean currents", "Shakespeare's tragedies", "public key cryptography",
    "the Cold War", "nuclear fusion", "erosion", "the Renaissance", "game theory", "bridges", "satellites", "compilers",
    "the stock market", "renewable energy", "the nervous system", "central banks", "climate change", "Roman law",
)
EXPLAIN = (
    "Explain {topic} in simple terms.", "What are the main causes and effects of {topic}?", "Describe {topic} with two examples.",
    "Compare two different views of {topic}.", "Provide an overview of {topic} and why it matters today.",
    "How would you teach {topic} to a ten-year-old?", "Write five questions for a quiz on {topic} with answers.",
)
ROLES = ("a ship's captain", "a detective", "a doctor", "a librarian", "a travel guide", "a chef", "an astronaut",
         "a medieval knight", "a motivational coach", "a sports reporter", "a park ranger", "a river")
ASKS = ("introduce yourself", "give advice on starting a business", "explain why the sky is blue", "describe your morning",
        "answer: do you have feelings?", "plan a weekend in Paris", "comment on modern art", "tell a joke about your work")
NAMES = ("Anna Berg", "Luis Ortega", "Mei Lin", "John Carter", "Fatima Noor", "Peter Novak", "Grace Kim", "Omar Haddad")
CITIES = ("Berlin", "Lima", "Osaka", "Toronto", "Cairo", "Prague", "Seoul", "Lisbon")
GOODS = ("a laptop", "two chairs", "a camera", "three books", "a bicycle", "garden tools", "a violin", "running shoes")
FORMATS = ("Answer in JSON.", "Answer as a table.", "Answer as a list.", "Answer in one line each.", "Answer in CSV.")
REASON = (
    "{a} is older than {b}. {b} is older than {c}. Who is the youngest? Explain.",
    "If all {x} are {y} and some {y} are {z}, are some {x} {z}? Reason step by step.",
    "A shop sells {n} apples for {m} dollars. How much do {k} apples cost?",
    "Which word does not belong to the others: {x}, {y}, {z}, {c}?",
    "{a} walks {n} km north, then {m} km east. How far is {a} from the start?",
    "Solve for x: {n}x + {m} = {k}.", "What is the probability of drawing {n} red balls from a bag with {m} red and {k} blue ones?",
)
THINGS = ("roses", "flowers", "birds", "tools", "teachers", "cars", "metals", "planets", "cats", "poets", "chairs", "rivers")


def varied_prompts(seed: int = 0) -> list[tuple[str, str]]:
    """(category, prompt) pairs, shuffled: about 2,000 different ones."""
    draw = random.Random(seed)
    made = [("code", form.format(language=draw.choice(LANGUAGES), task=task)) for form, task in product(CODE, TASKS)]
    made += [("writing", _letter(draw)) for _ in range(400)]
    made += [("explain", form.format(topic=topic)) for form, topic in product(EXPLAIN, TOPICS)]
    made += [("roleplay", f"Pretend to be {role} and {ask}.") for role, ask in product(ROLES, ASKS)]
    made += [("extraction", _extraction(draw)) for _ in range(350)]
    made += [("reasoning", _reasoning(draw)) for _ in range(350)]
    made = list(dict.fromkeys(made))
    draw.shuffle(made)
    return made


def _letter(draw: random.Random) -> str:
    kind, audience, subject = draw.choice(LETTERS), draw.choice(AUDIENCES), draw.choice(SUBJECTS)
    ending = draw.choice(("", " Keep it under 150 words.", " Use a friendly tone.", " Begin with a question."))
    return f"Write a {kind} for {audience} about {subject}.{ending}"


def _extraction(draw: random.Random) -> str:
    orders = [
        f"{draw.choice(NAMES)} from {draw.choice(CITIES)} bought {draw.choice(GOODS)} for {draw.randint(5, 900)} dollars "
        f"on {draw.randint(1, 28)} {draw.choice(('March', 'June', 'October'))} {draw.randint(2001, 2024)}."
        for _ in range(draw.randint(2, 4))
    ]
    wanted = draw.choice(("name, city and price", "date and item", "every name", "the total price", "year and buyer"))
    return f"Extract {wanted} from the following text. {draw.choice(FORMATS)}\n\n{' '.join(orders)}"


def _reasoning(draw: random.Random) -> str:
    a, b, c = (name.split()[0] for name in draw.sample(NAMES, 3))
    x, y, z = draw.sample(THINGS, 3)
    n, m, k = (draw.randint(2, 40) for _ in range(3))
    return draw.choice(REASON).format(a=a, b=b, c=c, x=x, y=y, z=z, n=n, m=m, k=k)
