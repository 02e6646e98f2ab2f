"""The words that keys and line names are made of."""

ADJECTIVES = (
    "able brave bright calm clear cold crisp damp dear dry early fair fast fine flat fresh glad gray happy heavy "
    "huge icy keen large lazy little lone lucky merry mild new noble old plain proud quick rapid ready ripe round "
    "rusty safe shiny shy silly sleepy slow smart soft sour steep strong sweet tall tender tidy tough vast weak "
    "wide wise young"
).split()

NOUNS = (
    "acorn apple badge barn beach bear bench bird bone boot bowl bread bridge bucket button cactus camel canoe "
    "carrot cat chair cherry clock coat comet cow crane crown deer dog dove drum eagle egg falcon feather field "
    "fish flame flute fork frog gate giraffe goat grape harp hawk honey house jacket jewel key kite ladder lamp "
    "lemon lizard marble melon monkey moth mouse nest ocean orange owl panda parrot pear pebble pepper pigeon "
    "pine plum potato rabbit raven ring robin rope sail salt seal ship silver snail snow"
).split()
