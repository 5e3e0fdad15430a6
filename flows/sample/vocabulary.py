"""The words of the shop: category codes, and brands from the best known to made-up ones."""

from __future__ import annotations

# Most viewed first. In December the code of smartphones becomes RELABELLED.
SMARTPHONE = "electronics.smartphone"
RELABELLED = "construction.tools.light"

_TWO_LEVELS = """
electronics.smartphone electronics.clocks computers.notebook apparel.shoes electronics.tablet electronics.telephone
computers.desktop kids.toys kids.carriage furniture.cabinet accessories.bag auto.tyres appliances.iron sport.bicycle
apparel.costume apparel.shirt apparel.trousers apparel.tshirt apparel.jeans apparel.jacket apparel.dress
apparel.jumper apparel.underwear apparel.sock apparel.scarf apparel.skirt apparel.shorts apparel.belt apparel.glove
apparel.pajamas accessories.wallet accessories.umbrella appliances.ironing_board appliances.sewing_machine kids.dolls
kids.skates kids.swing kids.bottles sport.trainer sport.ski sport.snowboard sport.tennis sport.diving
stationery.cartrige stationery.paper computers.ebooks country_yard.cultivator country_yard.lawn_mower
country_yard.watering
"""

_THREE_LEVELS = """
electronics.audio.headphone electronics.video.tv appliances.kitchen.washer appliances.environment.vacuum
appliances.kitchen.refrigerators electronics.audio.acoustic appliances.kitchen.kettle auto.accessories.player
appliances.kitchen.blender appliances.kitchen.microwave appliances.kitchen.hood appliances.kitchen.oven
appliances.personal.massager appliances.environment.water_heater appliances.kitchen.hob appliances.kitchen.mixer
appliances.kitchen.meat_grinder appliances.kitchen.dishwasher appliances.kitchen.juicer appliances.kitchen.grill
appliances.kitchen.toster appliances.kitchen.fryer appliances.kitchen.steam_cooker appliances.kitchen.coffee_machine
appliances.kitchen.coffee_grinder appliances.environment.air_conditioner appliances.environment.air_heater
appliances.environment.climate appliances.environment.fan appliances.personal.hair_cutter appliances.personal.scales
computers.peripherals.printer computers.peripherals.monitor computers.peripherals.mouse computers.peripherals.keyboard
computers.peripherals.camera computers.peripherals.joystick computers.peripherals.wifi computers.components.cpu
computers.components.videocards computers.components.motherboard computers.components.memory computers.components.hdd
computers.components.cooler computers.components.power_supply computers.components.sound_card construction.tools.drill
construction.tools.light construction.tools.saw construction.tools.welding construction.tools.generator
construction.tools.pump construction.tools.painting construction.components.faucet country_yard.furniture.bench
country_yard.furniture.hammok electronics.camera.photo electronics.camera.video electronics.video.projector
electronics.audio.subwoofer electronics.audio.microphone furniture.living_room.sofa furniture.living_room.cabinet
furniture.living_room.chair furniture.living_room.shelving furniture.bedroom.bed furniture.bedroom.blanket
furniture.bedroom.pillow furniture.kitchen.table furniture.kitchen.chair furniture.bathroom.bath
furniture.bathroom.toilet furniture.universal.light auto.accessories.videoregister auto.accessories.radar
auto.accessories.compressor auto.accessories.alarm auto.accessories.light kids.fmcg.diapers medicine.tools.tonometer
"""

_KNOWN_BRANDS = """
samsung apple xiaomi huawei oppo lg acer lenovo artel bosch indesit hp cordiant sony philips midea lucente asus
dauscher beko nika elenberg tefal triangle redmond jbl casio haier candy polaris vitek gorenje braun nokia meizu
viatti karcher panasonic canon logitech dell msi makita toshiba whirlpool hansa electrolux ariston respect salamander
milavitsa arena aura sokolov tissot rondell marley zeta starline pioneer kicx yokohama michelin nokian sava goodyear
msport
"""

CODES = (*_TWO_LEVELS.split(), *_THREE_LEVELS.split())
TWO_LEVELS = len(_TWO_LEVELS.split())


def brands(count: int) -> list[str]:
    """`count` distinct brands, the most viewed first: known names, then made-up ones of four syllables."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    base = len(syllables)
    names = _KNOWN_BRANDS.split()
    for number in range(count - len(names)):
        mixed = number * 7_654_321 % base**4
        names.append("".join(syllables[mixed // base**place % base] for place in range(4)))
    return names
