"""Generated conversations: own templates, own sentences. A chat is (system, [(user, thought or None, answer), ...])."""

import os
import random

from code_tasks import C, PY

HERE = os.path.dirname(os.path.abspath(__file__))
TOPICS = [l.rstrip("\n").split("|") for l in open(os.path.join(HERE, "topics.txt"))]
NAMES = (
    "Anna Ben Clara David Emma Finn Greta Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Uma Victor Wendy"
    " Lucy Tom".split()
)

LISTS = {
    "fruits": "apple banana cherry orange pear grape plum peach mango lemon",
    "vegetables": "carrot potato tomato onion cabbage spinach pepper bean",
    "animals": "dog cat horse cow lion tiger elephant rabbit bear wolf",
    "birds": "eagle sparrow owl raven robin swan duck pigeon",
    "colors": "red blue green yellow orange purple black white brown pink",
    "countries": "France Germany Italy Spain Japan Brazil Canada India Egypt Norway",
    "cities": "Paris London Berlin Rome Tokyo Madrid Cairo Toronto",
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune",
    "programming languages": "Python C Java Rust Go JavaScript Ruby Lua",
    "databases": "PostgreSQL SQLite MySQL Redis MongoDB",
    "sports": "football tennis swimming running basketball skiing cycling",
    "musical instruments": "piano guitar violin flute drum trumpet cello",
    "metals": "iron copper gold silver tin lead aluminium zinc",
    "trees": "oak pine birch maple willow beech ash",
    "drinks": "water tea coffee milk juice lemonade",
    "flowers": "rose tulip lily daisy violet sunflower orchid",
    "tools": "hammer saw screwdriver drill wrench pliers",
    "vehicles": "car bus train bicycle boat airplane truck",
    "sorting algorithms": "quicksort mergesort heapsort bubblesort insertionsort",
    "seasons": "spring summer autumn winter",
    "data structures": "array list stack queue tree graph",
}
NUMBER = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
CAPITALS = dict(
    p.split(":")
    for p in (
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon England:London Ireland:Dublin "
        "Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Poland:Warsaw Austria:Vienna "
        "Hungary:Budapest Greece:Athens Turkey:Ankara Egypt:Cairo Kenya:Nairobi India:Delhi China:Beijing "
        "Japan:Tokyo Canada:Ottawa Mexico:Mexico_City Brazil:Brasilia Argentina:Buenos_Aires Chile:Santiago "
        "Peru:Lima Cuba:Havana Russia:Moscow Iran:Tehran Iraq:Baghdad Thailand:Bangkok Vietnam:Hanoi "
        "Australia:Canberra Belgium:Brussels Switzerland:Bern "
    ).split()
)
OPPOSITE = (
    "hot:cold big:small fast:slow up:down good:bad light:dark open:closed early:late full:empty happy:sad hard:soft"
    " high:low long:short new:old near:far rich:poor strong:weak wet:dry young:old thick:thin first:last loud:quiet"
    " clean:dirty easy:difficult".split()
)
FACTS = [
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("How many minutes are in an hour?", "There are sixty minutes in an hour."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What color is the sky?", "On a clear day the sky is blue."),
    (
        "Why is the sky blue?",
        "The sky is blue because air scatters the short blue waves of sunlight more than the long red ones.",
    ),
    ("At what temperature does water boil?", "At sea level water boils at 100 degrees Celsius."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius."),
    ("What is the largest planet?", "Jupiter is the largest planet in our solar system."),
    ("What is the tallest mountain?", "Mount Everest is the tallest mountain above sea level."),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."),
    ("What do bees make?", "Bees make honey from the nectar of flowers."),
    ("Which animal is the largest?", "The blue whale is the largest animal on earth."),
    ("How many bits are in a byte?", "There are eight bits in a byte."),
    ("What is the chemical formula of water?", "The chemical formula of water is H2O."),
    ("What comes after Monday?", "Tuesday comes after Monday."),
]
SYSTEMS = [
    "You are a helpful assistant.",
    "You are a friendly assistant who answers briefly.",
    "You are a careful programmer.",
    "Answer in one or two sentences.",
    "You are a patient teacher.",
]
HELLO = [
    "Hello",
    "Hello!",
    "Hi",
    "Hi!",
    "Hi there",
    "Hey",
    "hello",
    "hi",
    "Good morning",
    "Good evening",
    "Hello there!",
    "Good day",
]
HELLO_A = ["Hello! How can I help you today?"]
TALK = [
    ("How are you?", "I am doing well, thank you. What can I do for you?"),
    (
        "Who are you?",
        "I am a small language model. I can chat, explain things, do simple arithmetic and write short programs.",
    ),
    (
        "What can you do?",
        (
            "I can answer short questions, explain words, calculate, make lists, tell stories and write small"
            " functions in Python and C."
        ),
    ),
    ("What is your name?", "I have no name. I am a small language model."),
    ("Thank you", "You are welcome! Is there anything else I can help you with?"),
    ("Thanks!", "You are welcome! Is there anything else I can help you with?"),
    ("Thank you very much.", "You are welcome! Is there anything else I can help you with?"),
    ("Goodbye", "Goodbye! Have a nice day."),
    ("Bye", "Goodbye! Have a nice day."),
    ("See you later", "See you later! Have a nice day."),
    ("Are you a human?", "No, I am a small language model that runs on your computer."),
    ("Can you help me?", "Of course! Tell me what you need, and I will do my best."),
    ("Tell me a joke.", "Why did the programmer leave the party? Because there were too many bugs in the garden."),
    ("I am tired.", "Then a short break may help. Drink some water, close your eyes for a few minutes and rest."),
    ("I am bored.", "How about reading a book, taking a walk or learning a few lines of Python?"),
    (
        "What is the meaning of life?",
        (
            "People answer this in many ways. For some it is love, for others it is work, knowledge or helping each"
            " other."
        ),
    ),
]


def cap(s):
    return s[0].upper() + s[1:]


def topic(r):
    name, one, two = r.choice(TOPICS)
    if r.random() < 0.04:
        name, one, two = TOPICS[0]
    k = r.random()
    if k < 0.45:
        q = r.choice(
            [
                "Explain {} in one sentence.",
                "Explain {} in one sentence.",
                "Describe {} in one sentence.",
                "In one sentence, what is {}?",
                "Please explain {} in one sentence.",
                "Summarize {} in a single sentence.",
            ]
        )
        a = one
    elif k < 0.75:
        q = r.choice(
            [
                "What is {}?",
                "Explain {}.",
                "What does {} mean?",
                "Can you explain {}?",
                "Tell me about {}.",
                "What do you know about {}?",
            ]
        )
        a = one + " " + two
    else:
        q = r.choice(
            ["Explain {} in two sentences.", "Describe {} in two sentences.", "Give me two sentences about {}."]
        )
        a = one + " " + two
    return q.format(name), a, f"The user wants to know about {name}. I should give a clear explanation."


def steps(a, b):
    """a times b by splitting b into tens and ones."""
    t, o = b // 10 * 10, b % 10
    if b < 10 or a < 10:
        return f"{a} times {b} is {a * b}."
    if o == 0:
        return f"{a} × {b // 10} = {a * (b // 10)}, and ten times that is {a * b}. So {a} times {b} is {a * b}."
    return (
        f"{a} × {t} = {a * t} and {a} × {o} = {a * o}. Adding them gives {a * t} + {a * o} = {a * b}. So {a} times"
        f" {b} is {a * b}."
    )


def times(r, a=None, b=None):
    a, b = a or r.randrange(2, 100), b or r.randrange(2, 100)
    q = r.choice(
        [
            "What is {} times {}?",
            "What is {} times {}?",
            "How much is {} times {}?",
            "Calculate {} * {}.",
            "What is {} * {}?",
            "Multiply {} by {}.",
            "{} times {}?",
        ]
    ).format(a, b)
    return q, steps(a, b), f"I need to multiply {a} by {b}. {steps(a, b)}"


def arithmetic(r):
    k = r.random()
    if k < 0.5:
        return times(r)
    n = 100 if k < 0.9 else 1000
    a, b = r.randrange(1, n), r.randrange(1, n)
    if k < 0.72:
        q = r.choice(
            ["What is {} plus {}?", "What is {} + {}?", "Add {} and {}.", "How much is {} plus {}?"]
        ).format(a, b)
        return q, f"{a} plus {b} is {a + b}.", f"I need to add {a} and {b}. The sum is {a + b}."
    if k < 0.9:
        a, b = max(a, b), min(a, b)
        q = r.choice(["What is {} minus {}?", "What is {} - {}?", "How much is {} minus {}?"]).format(a, b)
        return q, f"{a} minus {b} is {a - b}.", f"I need to subtract {b} from {a}. The difference is {a - b}."
    b = r.randrange(2, 13)
    a = b * r.randrange(2, 50)
    q = r.choice(["What is {} divided by {}?", "What is {} / {}?"]).format(a, b)
    return q, f"{a} divided by {b} is {a // b}.", f"I need to divide {a} by {b}. The result is {a // b}."


def python_code(r, i=None):
    task, name, params, body, why, call, result = PY[i if i is not None else r.randrange(len(PY))]
    q = r.choice(
        [
            "Write a Python function that {}.",
            "Write a Python function that {}.",
            "Please write a Python function that {}.",
            "Show me a Python function that {}.",
            "I need a Python function that {}.",
            "Give me Python code that {}.",
        ]
    ).format(task)
    code = f"def {name}({params}):\n" + "".join(f"    {l}\n" for l in body)
    a = (
        f"Here is a Python function that {task}:\n\n```python\n{code}\n\nprint({name}({call}))\n```\n\n{why} The"
        f" example prints `{result}`."
    )
    return q, a, f"The user wants a Python function that {task}. I will call it {name} and show an example."


def c_code(r, i=None):
    sig, body, why, call, result = C[i if i is not None else r.randrange(len(C))]
    code = sig + " {\n" + "".join(f"    {l}\n" for l in body) + "}\n"
    name = sig.split("(")[0].split()[-1].strip("*")
    q = r.choice(
        [
            "Complete this C function: {} {{",
            "Complete this C function: {} {{",
            "Complete the C function: {} {{",
            "Finish this C function: {} {{",
            "Write the C function {}.",
            "Please complete this C function: {} {{",
        ]
    ).format(sig)
    a = f"Here is the complete function:\n\n```c\n{code}```\n\n{why}"
    if call:
        a += (
            ' You can call it like this:\n\n```c\n#include <stdio.h>\n\nint main(void) {\n    printf("%d\\n",'
            f" {call});\n    return 0;\n}}\n```\n\nThe program prints `{result}`."
        )
    return q, a, f"The user wants the C function {name}. I will write its body and explain it."


def listing(r):
    kind = r.choice(list(LISTS))
    words = LISTS[kind].split()
    n = r.randrange(2, min(len(words), 8) + 1)
    q = r.choice(["List {} {}.", "Name {} {}.", "Give me {} {}.", "Write a list of {} {}."]).format(
        NUMBER[n] if r.random() < 0.7 else n, kind
    )
    if n > 2 and r.random() < 0.3:
        a = f"{cap(NUMBER[n])} {kind} are {', '.join(words[:n - 1])} and {words[n - 1]}."
    else:
        a = f"Here are {NUMBER[n]} {kind}:\n\n" + "\n".join(f"{i + 1}. {cap(w)}" for i, w in enumerate(words[:n]))
    return q, a, f"The user wants {NUMBER[n]} {kind}. I will write them down."


def counting(r):
    a = r.randrange(1, 60)
    b = a + r.randrange(3, 15)
    if r.random() < 0.7:
        return (
            f"Count from {a} to {b}.",
            ", ".join(map(str, range(a, b + 1))) + ".",
            f"I will count from {a} up to {b}.",
        )
    return (
        f"Count down from {b} to {a}.",
        ", ".join(map(str, range(b, a - 1, -1))) + ".",
        f"I will count from {b} down to {a}.",
    )


def fact(r):
    k = r.random()
    if k < 0.35:
        c = r.choice(list(CAPITALS))
        q = r.choice(
            ["What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}."]
        ).format(c)
        return (
            q,
            f"The capital of {c} is {CAPITALS[c].replace('_', ' ')}.",
            f"The user asks for the capital of {c}.",
        )
    if k < 0.55:
        a, b = r.choice(OPPOSITE).split(":")
        if r.random() < 0.5:
            a, b = b, a
        return (
            f"What is the opposite of {a}?",
            f"The opposite of {a} is {b}.",
            f"The user asks for the opposite of {a}.",
        )
    if k < 0.65:
        w = r.choice([w for v in LISTS.values() for w in v.split()])
        return (
            f"How do you spell {w}?",
            f"{cap(w)} is spelled {'-'.join(w.lower())}.",
            f"I will spell the word {w}.",
        )
    q, a = r.choice(FACTS)
    return q, a, "This is a simple question about a fact."


ANIMALS = ["fox", "rabbit", "mouse", "bear", "owl", "hedgehog", "dog", "cat", "duck", "frog"]
PLACES = ["forest", "garden", "village", "valley", "meadow", "harbor", "castle", "mountain"]
THINGS = ["key", "lamp", "book", "map", "coin", "ring", "flute", "kite", "bell", "boat"]
ADJ = ["small", "old", "golden", "blue", "strange", "shiny", "wooden", "silver"]
JOY = [
    "they danced together until the stars came out",
    "they laughed and sang all the way home",
    "they shared a warm cake with honey",
]
FEEL = ["curious", "brave", "kind", "shy", "clever", "cheerful", "quiet"]


def story(r):
    n, m = r.sample(NAMES, 2)
    an, pl, th, ad, fe = r.choice(ANIMALS), r.choice(PLACES), r.choice(THINGS), r.choice(ADJ), r.choice(FEEL)
    who = r.choice([f"a {fe} {an} named {n}", f"a {fe} child named {n}"])
    a = [
        f"Once upon a time there was {who} who lived near a {pl}.",
        (
            f"One {r.choice(['morning', 'evening', 'day', 'summer day'])} {n} found"
            f" {'an' if ad[0] in 'aeiou' else 'a'} {ad} {th}"
            f" {r.choice(['under a tree', 'beside the road', 'near the river', 'behind a stone'])}."
        ),
        f"\"What a {r.choice(['beautiful', 'wonderful', 'curious'])} {th}!\" said {n}. \"I wonder who lost it.\"",
        f"So {n} asked everybody in the {pl}, but nobody knew anything about the {th}.",
        r.choice(
            [
                f"Then {n} met {m}, who was sitting on a bench and looked very sad.",
                f"At last {n} came to the house of {m} and knocked on the door.",
            ]
        ),
        f"\"Why are you so {r.choice(['sad', 'quiet', 'worried'])}?\" asked {n}.",
        f'"I lost my {th}," said {m}. "My grandmother gave it to me, and I have looked for it everywhere."',
        f"{n} smiled and held out the {ad} {th}.",
        (
            f"{m} was so happy that"
             f" {r.choice(JOY)}."
        ),
        r.choice(
            [
                f"From that day on, {n} and {m} were the best of friends.",
                f"And ever since that day, {n} and {m} have been good friends.",
            ]
        ),
    ]
    q = r.choice(
        [
            f"Tell me a story about a {an}.",
            "Tell me a short story.",
            f"Write a short story about a {th}.",
            f"Write a story about {n} and {m}.",
            f"Tell me a story about {n}.",
            "Write a story.",
        ]
    )
    if "short" not in q and r.random() < 0.5:
        a.insert(5, f"The wind was cold, and the first lamps of the {pl} were already burning.")
    return q, " ".join(a), "The user wants a story. I will write about a lost thing and a new friend."


def rewrite(r):
    w = r.choice([w for v in LISTS.values() for w in v.split()])
    k = r.randrange(3)
    if k == 0:
        return f"Write the word {w} in capital letters.", w.upper(), f"I will write {w} in capital letters."
    if k == 1:
        return f"Repeat the word {w} three times.", f"{w} {w} {w}", f"I will repeat {w} three times."
    s = r.sample([w for v in LISTS.values() for w in v.split()], 4)
    return (
        f"Sort these words: {', '.join(s)}.",
        ", ".join(sorted(s, key=str.lower)),
        "I will put the words in alphabetical order.",
    )


def greeting(r):
    return r.choice(HELLO), HELLO_A[0], "The user greets me. I will greet back."


def talk(r):
    q, a = r.choice(TALK)
    return q, a, "This is small talk. I will answer in a friendly way."


KINDS = [
    (greeting, 6),
    (talk, 6),
    (topic, 20),
    (arithmetic, 24),
    (python_code, 14),
    (c_code, 14),
    (listing, 7),
    (counting, 2),
    (fact, 8),
    (story, 7),
    (rewrite, 3),
]


def chat(r):
    fs, ws = zip(*KINDS)
    turns = 1 if r.random() < 0.7 else r.randrange(2, 5)
    think = r.random() < 0.15
    out = []
    for _ in range(turns):
        q, a, t = r.choices(fs, ws)[0](r)
        out.append((q, t if think else None, a))
    return (r.choice(SYSTEMS) if r.random() < 0.15 else ""), out
