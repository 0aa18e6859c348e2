"""Words and prose of the encyclopedia. Few syllables and words make many names near-duplicates, so a retriever has to
read, and a tiny vocabulary covers them."""

GIVEN = """
    Ada Alma Anton Arno Bela Boris Clara Dora Doran Edda Egon Elsa Emil Erna Felix Greta Hugo Ida Ilse Irma Ivan Jonas
    Karl Lena Lina Marta Max Mina Nils Nora Olga Oskar Otto Paula Rosa Selma Sofia Theo Vera Viktor
""".split()
SURNAME_STARTS = "Bar Bel Bren Dal Dor Fen Gar Hal Kar Lin Mor Nor Pel Ros Sel Tor Ver Wil".split()
SURNAME_ENDS = "by den er ik low man mer sen ton".split()
PLACE_STARTS = "Al Bor Cal Dun El Fal Gren Hol Ist Kel Lor Mel Nar Os Pol Ral Sal Tal Ulm Win".split()
PLACE_ENDS = "burg dale ford holm mar mouth stad vik wick".split()
PLACE_PREFIXES = "East Great Little Lower New North Old South Upper West".split()
ADJECTIVES = """
    Amber Bitter Blue Broken Burning Cold Copper Crimson Distant Early Empty Faded Frozen Gentle Golden Green Grey
    Hidden Hollow Iron Last Late Long Lost Narrow Pale Quiet Red Salt Scarlet Secret Silent Silver Slow Stone Summer
    Velvet White Wild Winter
""".split()
NOUNS = """
    Anchor Bell Bridge Candle Crown Door Dream Feather Field Fire Garden Gate Harbour Harvest Hour Journey Key Ladder
    Lamp Letter Mirror Mountain Night Orchard Path River Road Room Season Shadow Ship Song Star Storm Sword Tide Tower
    Voice Window Wolf
""".split()
ANIMALS = "Bears Crows Eagles Foxes Herons Lynxes Otters Owls Ravens Stags Swans Wolves".split()
REGIONS = "Arland Belmark Corvia Dravia Estland Farland Gotria Hesmark Istria Jarland Kostria Lonmark".split()
PRODUCTS = "bells boats bread cheese cider clocks cloth glass honey knives lace paper ropes salt tiles".split()
INSTRUMENTS = "cello drum flute harp horn lute oboe organ piano viola violin zither".split()
TOPICS = "betrayal courage debt envy exile faith famine grief hope pride revenge travel treason war".split()
COLOURS = "black blue brown gold green grey orange pink purple red silver white yellow".split()
TOWN_TYPES = ("harbour town", "hill town", "market town", "mining town")
SPORTS = "rowing running sailing skating".split()
WORK_TYPES = {"writer": ("novel", "play"), "composer": ("opera", "ballad")}  # author's profession → types of works
PROFESSIONS = {"writer": 0.4, "composer": 0.3, "merchant": 0.15, "coach": 0.15}  # shares of all persons

# Prose around the facts. It states none of them; {other} is a name from the entity's facts.
PROSE = {
    "person": (
        "Letters that have come down to us tell of long walks, little money and many plans.",
        "The name of {other} comes up again and again in what friends remembered.",
        "Opinion among contemporaries was divided, and it still is.",
        "Some papers were lost in a fire; what is left fills four boxes in a library.",
        "Anyone who asks about {other} will hear this name sooner or later.",
    ),
    "place": (
        "The old streets lead down from the square in no order that anyone has explained.",
        "On market days the talk is of prices, the weather and {other}.",
        "A museum behind the church shows tools, maps and a model of the town.",
        "Visitors often come because of {other} and stay for the food.",
        "In spring the lower quarter is sometimes under water.",
    ),
    "work": (
        "The first audiences did not know what to make of it.",
        "It is hard to think of it without thinking of {other}.",
        "Several drafts are known, and the last of them is much shorter than the first.",
        "Later critics saw in it a reply to the taste of the day.",
        "A letter about {other} shows how slowly the work went.",
    ),
    "team": (
        "Members still meet in the room above the old boathouse.",
        "Old programmes often mention {other} on the first page.",
        "There were lean years, and twice the club nearly had to close.",
        "The rivalry with the neighbours is older than the club itself.",
        "Young people train free of charge on two evenings a week.",
    ),
    "event": (
        "It rained on the first day, and nobody minded.", "Reports of the time speak at length of {other}.",
        "The programme was printed on cheap paper, and few copies are left.",
        "Innkeepers took double the usual price for a bed.", "Many had come for {other} alone.",
    ),
}  # fmt: skip
