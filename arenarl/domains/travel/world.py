"""The embedded travel world, generated from a seed: places, timetables and routes in twelve Chinese cities.

Cities, coordinates, airports and stations are real; the 576 places, their attributes and all timetables are fictional.
The world replaces the paper's Amap services and simulated tickets (Appendix C), so every fact of an answer can be
checked. One seed gives the same world on every machine. Price, hours, rating and preferences are independent.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import asin, cos, pi, radians, sin, sqrt

from arenarl.domains.travel.names import CATEGORIES, CITY_ROWS, PREFERENCES, PREFIXES, PRICES_YUAN, STREETS

CITY_RADIUS_KM = 5.0  # places lie this far from the centre at most
PER_GROUP = 4  # places of one category in one city
ROAD_FACTOR = 1.3  # length of a way, divided by the great-circle distance
SPEED_KMH = {"driving": 30.0, "walking": 4.8, "transit": 18.0}
WAIT_MIN = {"driving": 3, "walking": 0, "transit": 8}  # minutes before each leg
Point = tuple[float, float]  # (longitude, latitude)


@dataclass(frozen=True, slots=True)
class City:
    key: str
    name_en: str
    name_zh: str
    lon: float
    lat: float
    airport_en: str
    airport_zh: str
    station_en: str
    station_zh: str

    @property
    def point(self) -> Point:
        return self.lon, self.lat


@dataclass(frozen=True, slots=True)
class Poi:
    """A place. `tags`: one or two of PREFERENCES; "cheap", "late" and "top" hold among its city's places of a kind."""

    poi_id: str
    name_en: str
    name_zh: str
    city: str
    category: str
    address_en: str
    address_zh: str
    lon: float
    lat: float
    price_yuan: int  # per person
    rating: float
    opens: str
    closes: str
    tags: tuple[str, ...]

    @property
    def point(self) -> Point:
        return self.lon, self.lat


@dataclass(frozen=True, slots=True)
class Journey:
    """A flight or train that arrives on the day of its departure. `via` is the city of a change."""

    kind: str
    number: str
    departs: str
    arrives: str
    minutes: int
    price_yuan: int
    from_terminal_en: str
    from_terminal_zh: str
    to_terminal_en: str
    to_terminal_zh: str
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    mode: str
    distance_km: float
    minutes: int
    cost_yuan: int


class World:
    """The places, timetables and routes behind the travel tools. All methods except `find_city` take a city's key."""

    def __init__(self, seed: int):
        self.seed = seed
        self.cities = {row[0]: _make_city(*row) for row in CITY_ROWS}
        self.pois = tuple(_make_pois(seed, self.cities))
        self._by_name = {name: poi for poi in self.pois for name in (poi.name_en.lower(), poi.name_zh)}
        names = {city: (city.key.lower(), city.name_zh, city.name_zh + "市") for city in self.cities.values()}
        self._by_city_name = {name: city for city in names for name in names[city]}
        self._groups = {
            (city, category): tuple(poi for poi in self.pois if poi.city == city and category in (None, poi.category))
            for city in self.cities
            for category in (None, *CATEGORIES)
        }

    def find_poi(self, name: str) -> Poi | None:
        """Return the place with this English or Chinese name, or None; case and outer spaces do not matter."""
        return self._by_name.get(name.strip().lower())

    def find_city(self, name: str) -> City | None:
        """Return the city with this English or Chinese name, or None; Xian, xi'an, 西安 and 西安市 are the same."""
        return self._by_city_name.get(name.strip().lower().replace("'", "").replace("’", ""))

    def city_name(self, city: str, language: str) -> str:
        """Return the city's name in a language; a city that occurs only in an LLM's timetable keeps its name."""
        return getattr(self.cities[city], f"name_{language}") if city in self.cities else city

    def pois_in(self, city: str, category: str | None = None) -> tuple[Poi, ...]:
        return self._groups[city, category]

    def pois_within(self, center: Point, radius_km: float) -> list[tuple[float, Poi]]:
        """Return (distance in km, place) for all places within the radius, nearest first."""
        pairs = []
        for city in self.cities.values():
            if distance_km(center, city.point) <= radius_km + 1.1 * CITY_RADIUS_KM:
                pairs += [(distance_km(center, poi.point), poi) for poi in self.pois_in(city.key)]
        return sorted((pair for pair in pairs if pair[0] <= radius_km), key=lambda pair: (pair[0], pair[1].poi_id))

    def flights(self, date: str, from_city: str, to_city: str) -> list[Journey]:
        """Return three or four direct flights by departure. `date` is YYYY-MM-DD."""
        start, end = self.cities[from_city], self.cities[to_city]
        rng = random.Random(f"{self.seed}:flight:{date}:{from_city}:{to_city}")
        km, journeys = distance_km(start.point, end.point), []
        for number in rng.sample(range(1100, 1900, 10), rng.choice((3, 4))):
            minutes = round(40 + km / 750 * 60) + rng.randint(0, 15)
            price = (220 + 0.55 * km) * rng.uniform(0.45, 1.3)
            name = rng.choice(("CA", "MU", "CZ", "HU")) + str(number)
            journeys.append(_make_journey(rng, "flight", name, (start, end), minutes, price))
        return sorted(journeys, key=lambda journey: (journey.departs, journey.number))

    def trains(self, date: str, from_city: str, to_city: str) -> list[Journey]:
        """Return two or three direct trains and one with a change, by departure; G trains are faster than D trains."""
        start, end = self.cities[from_city], self.cities[to_city]
        rng = random.Random(f"{self.seed}:train:{date}:{from_city}:{to_city}")
        others = [city for city in self.cities.values() if city not in (start, end)]
        detours = sorted(
            (distance_km(start.point, city.point) + distance_km(city.point, end.point), city.key) for city in others
        )
        numbers = rng.sample(range(10, 100), rng.choice((3, 4)))
        ways = [rng.choice(detours[:3])] + [(distance_km(start.point, end.point), None)] * (len(numbers) - 1)
        journeys = []
        for number, (km, via) in zip(numbers, ways, strict=True):
            letter, speed_kmh, yuan_per_km = rng.choice((("G", 250, 0.46), ("D", 210, 0.36)))
            minutes = round(km / speed_kmh * 60) + 4 * int(km // 250) + 5 + (rng.randint(30, 60) if via else 0)
            price = (20 + yuan_per_km * km) * rng.uniform(0.85, 1.15) * (0.75 if via else 1)
            journeys.append(_make_journey(rng, "train", f"{letter}{number}", (start, end), minutes, price, via))
        return sorted(journeys, key=lambda journey: (journey.departs, journey.number))

    def journeys(self, date: str, from_city: str, to_city: str) -> list[Journey]:
        """Return all flights, then all trains."""
        return self.flights(date, from_city, to_city) + self.trains(date, from_city, to_city)

    def route(self, points: Sequence[Point], mode: str) -> Route:
        """Return the route through all points: the sum of its legs, each with its own fare and waiting time."""
        legs = [_make_leg(start, end, mode) for start, end in pairwise(points)]
        kilometres = round(sum(leg.distance_km for leg in legs), 1)
        return Route(mode, kilometres, sum(leg.minutes for leg in legs), sum(leg.cost_yuan for leg in legs))


@lru_cache(maxsize=4)
def build_world(seed: int = 0) -> World:
    return World(seed)


def distance_km(a: Point, b: Point) -> float:
    """Return the great-circle distance (haversine) of two (longitude, latitude) points in degrees.

    >>> round(distance_km((116.4074, 39.9042), (121.4737, 31.2304)))  # Beijing to Shanghai
    1067
    """
    lon_a, lat_a, lon_b, lat_b = map(radians, (*a, *b))
    half = sin((lat_b - lat_a) / 2) ** 2 + cos(lat_a) * cos(lat_b) * sin((lon_b - lon_a) / 2) ** 2
    return 2 * 6371.0 * asin(sqrt(half))


def _make_city(
    key: str, name_en: str, name_zh: str, lon: float, lat: float, airport_en: str, airport_zh: str, *stations: str
) -> City:
    airports = f"{name_en} {airport_en} International Airport", f"{name_zh}{airport_zh}国际机场"
    return City(key, name_en, name_zh, lon, lat, *airports, f"{stations[0]} Railway Station", stations[1])


def _make_pois(seed: int, cities: dict[str, City]) -> list[Poi]:
    """Generate all places, city by city. Every prefix meets every category once, so names are unique."""
    prefixes = {
        category: random.Random(f"{seed}:prefixes:{category}").sample(PREFIXES, len(PREFIXES))
        for category in CATEGORIES
    }
    pois: list[Poi] = []
    for position, city in enumerate(cities.values()):
        for category in CATEGORIES:
            names = prefixes[category][PER_GROUP * position : PER_GROUP * (position + 1)]
            pois += _make_group(seed, city, category, names, first_id=len(pois))
    return pois


def _make_group(seed: int, city: City, category: str, names: Sequence[tuple[str, str]], first_id: int) -> list[Poi]:
    """Generate one category in one city: distinct prices and ratings, two open late, every preference at least once."""
    rng = random.Random(f"{seed}:pois:{city.key}:{category}")
    prices = rng.sample(PRICES_YUAN[category], PER_GROUP)
    ratings = rng.sample(range(35, 51), PER_GROUP)
    late = rng.sample(range(PER_GROUP), 2)
    preferences = rng.sample(PREFERENCES, PER_GROUP)
    versatile = rng.sample(range(PER_GROUP), 2)  # these places also have their neighbour's preference
    pois = []
    for index, (name_en, name_zh) in enumerate(names):
        tags = (preferences[index],) + (preferences[index - 1],) * (index in versatile)
        tags += ("cheap",) * (prices[index] <= sorted(prices)[1]) + ("late",) * (index in late)
        tags += ("top",) * (ratings[index] == max(ratings))
        closing = ("21:00", "22:00") if index in late else ("17:00", "18:00")
        if category == "hotel" and index in late:
            hours = ("00:00", "24:00")
        else:
            hours = rng.choice(("08:00", "09:00", "10:00")), rng.choice(closing)
        (street_en, street_zh), number = rng.choice(STREETS), rng.randint(1, 299)
        name = f"{name_en} {category.capitalize()}", name_zh + CATEGORIES[category]
        address = f"{number} {street_en} Road, {city.name_en}", f"{city.name_zh}市{street_zh}路{number}号"
        place = (*name, city.key, category, *address, *_draw_point(rng, city))
        pois.append(Poi(f"P{first_id + index:04d}", *place, prices[index], ratings[index] / 10, *hours, tags))
    return pois


def _draw_point(rng: random.Random, city: City) -> Point:
    """Draw a point of the disc around the centre, with six decimals."""
    kilometres, angle = CITY_RADIUS_KM * sqrt(rng.random()), 2 * pi * rng.random()
    lat = city.lat + kilometres * sin(angle) / 111.2
    return round(city.lon + kilometres * cos(angle) / (111.2 * cos(radians(city.lat))), 6), round(lat, 6)


def _make_journey(
    rng: random.Random, kind: str, number: str, cities: tuple[City, City], minutes: int, price: float,
    via: str | None = None,
) -> Journey:  # fmt: skip
    minutes = 5 * round(minutes / 5)  # timetables have steps of five minutes
    latest = 23 * 60 + 50 - minutes
    departs = rng.randint(min(6 * 60, latest), latest) // 5 * 5
    terminal = "airport" if kind == "flight" else "station"
    terminals = [getattr(city, f"{terminal}_{language}") for city in cities for language in ("en", "zh")]
    times = _clock(departs), _clock(departs + minutes), minutes
    price_yuan = max(20, 10 * round(price / 10))
    return Journey(kind, number, *times, price_yuan, *terminals, via)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _make_leg(start: Point, end: Point, mode: str) -> Route:
    kilometres = ROAD_FACTOR * distance_km(start, end)
    minutes = max(1, round(kilometres / SPEED_KMH[mode] * 60)) + WAIT_MIN[mode]
    taxi, transit = round(13 + 2.3 * max(0.0, kilometres - 3)), min(10, 2 + int(kilometres // 5))
    cost_yuan = {"driving": taxi, "walking": 0, "transit": transit}[mode]
    return Route(mode, round(kilometres, 1), minutes, cost_yuan)
