"""Word lists of the travel world in English and Chinese: cities, categories, tags, name prefixes and streets.

Cities, their coordinates, airports and railway stations are real. Prefixes and streets form the names of fictional
places. The patterns at the end recognise words of an answer.
"""

import re

# key, English, Chinese, longitude, latitude, airport and main railway station in both languages
CITY_ROWS = (
    ("Beijing", "Beijing", "北京", 116.4074, 39.9042, "Capital", "首都", "Beijing South", "北京南站"),
    ("Shanghai", "Shanghai", "上海", 121.4737, 31.2304, "Pudong", "浦东", "Shanghai Hongqiao", "上海虹桥站"),
    ("Guangzhou", "Guangzhou", "广州", 113.2644, 23.1291, "Baiyun", "白云", "Guangzhou South", "广州南站"),
    ("Shenzhen", "Shenzhen", "深圳", 114.0579, 22.5431, "Bao'an", "宝安", "Shenzhen North", "深圳北站"),
    ("Chengdu", "Chengdu", "成都", 104.0665, 30.5723, "Shuangliu", "双流", "Chengdu East", "成都东站"),
    ("Chongqing", "Chongqing", "重庆", 106.5516, 29.5630, "Jiangbei", "江北", "Chongqing North", "重庆北站"),
    ("Hangzhou", "Hangzhou", "杭州", 120.1551, 30.2741, "Xiaoshan", "萧山", "Hangzhou East", "杭州东站"),
    ("Wuhan", "Wuhan", "武汉", 114.3054, 30.5931, "Tianhe", "天河", "Wuhan", "武汉站"),
    ("Xian", "Xi'an", "西安", 108.9398, 34.3416, "Xianyang", "咸阳", "Xi'an North", "西安北站"),
    ("Nanjing", "Nanjing", "南京", 118.7969, 32.0603, "Lukou", "禄口", "Nanjing South", "南京南站"),
    ("Kunming", "Kunming", "昆明", 102.8329, 24.8801, "Changshui", "长水", "Kunming South", "昆明南站"),
    ("Harbin", "Harbin", "哈尔滨", 126.5358, 45.8038, "Taiping", "太平", "Harbin West", "哈尔滨西站"),
)

CATEGORIES = {
    "museum": "博物馆", "park": "公园", "temple": "寺", "gallery": "美术馆", "garden": "园林", "market": "市集",
    "theater": "剧院", "mall": "商场", "restaurant": "餐厅", "cafe": "咖啡馆", "teahouse": "茶馆", "hotel": "酒店",
}  # fmt: skip

PRICES_YUAN = {  # possible prices per person
    "museum": range(0, 61, 10), "park": range(0, 41, 10), "temple": range(0, 41, 10), "gallery": range(10, 81, 10),
    "garden": range(10, 71, 10), "market": range(0, 41, 10), "theater": range(60, 151, 10), "mall": range(0, 41, 10),
    "restaurant": range(30, 121, 10), "cafe": range(20, 71, 10), "teahouse": range(30, 101, 10),
    "hotel": range(150, 401, 50),
}  # fmt: skip

PREFERENCES = ("family", "couple", "quiet", "scenic")
TAGS = {
    "family": "亲子", "couple": "情侣", "quiet": "安静", "scenic": "风景",
    "cheap": "实惠", "late": "夜间", "top": "高分",
}  # fmt: skip

PREFIXES = (
    ("Lotus", "荷花"), ("Jade", "玉泉"), ("Drum", "鼓楼"), ("Crane", "鹤鸣"), ("Bamboo", "竹影"), ("Pine", "松风"),
    ("Plum", "梅岭"), ("Orchid", "兰亭"), ("Phoenix", "凤栖"), ("Dragon", "龙潭"), ("Tiger", "虎啸"), ("Swan", "天鹅"),
    ("Cloud", "云起"), ("Moon", "望月"), ("Sunrise", "朝霞"), ("Star", "星河"), ("Rain", "听雨"), ("Snow", "映雪"),
    ("Willow", "柳浪"), ("Maple", "红枫"), ("Peach", "桃源"), ("Cherry", "樱花"), ("Pearl", "明珠"), ("Amber", "琥珀"),
    ("Silk", "锦绣"), ("Lantern", "灯笼"), ("Bell", "钟楼"), ("Bridge", "石桥"), ("Pagoda", "宝塔"), ("River", "江畔"),
    ("Lake", "湖心"), ("Spring", "清泉"), ("Harbor", "港湾"), ("Eagle", "雄鹰"), ("Deer", "鹿鸣"), ("Carp", "锦鲤"),
    ("Lark", "云雀"), ("Heron", "白鹭"), ("Ginkgo", "银杏"), ("Cedar", "雪松"), ("Laurel", "桂花"), ("Peony", "牡丹"),
    ("Jasmine", "茉莉"), ("Azalea", "杜鹃"), ("Ink", "墨香"), ("Kite", "风筝"), ("Compass", "罗盘"), ("Magpie", "喜鹊"),
)  # fmt: skip

STREETS = (
    ("Renmin", "人民"), ("Jiefang", "解放"), ("Zhongshan", "中山"), ("Jianshe", "建设"), ("Heping", "和平"),
    ("Wenhua", "文化"), ("Xinhua", "新华"), ("Guangming", "光明"), ("Dongfeng", "东风"), ("Changjiang", "长江"),
    ("Huanghe", "黄河"), ("Xingfu", "幸福"),
)  # fmt: skip

MODES = {  # words for a mode of transport
    "driving": re.compile(r"driv|\bcar\b|taxi|驾车|开车|自驾|打车|出租", re.IGNORECASE),
    "walking": re.compile(r"walk|on foot|stroll|步行|走路|散步", re.IGNORECASE),
    "transit": re.compile(r"transit|metro|subway|\bbus|公交|地铁|巴士", re.IGNORECASE),
}

EVENING = "18:00"  # the start of the evening
EVENING_WORDS = re.compile(r"evening|night|dinner|sunset|晚|夜", re.IGNORECASE)
OF_SEVERAL = re.compile(r"for (?:two|\d)|people|[两\d]\s?人", re.IGNORECASE)  # a price for several persons
NO_SUM = re.compile(rf"budget|预算|{OF_SEVERAL.pattern}", re.IGNORECASE)  # such a price, or the budget
