"""Names, days, months, things, words to count letters in, and syllables for made-up words."""

NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace", "Hugo", "Ida", "Jonas",
         "Lena", "Max", "Nora", "Oscar", "Rosa", "Sam", "Tom", "Vera"]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August",
          "September", "October", "November", "December"]

THINGS = ["apples", "coins", "books", "stamps", "cards", "pens", "eggs", "shells", "balls", "nuts"]

WORDS = """
able about above acorn actor address after again agree alarm album alley almond alphabet amber anchor angle
animal ankle answer apple apricot april apron arrow artist ask asset atlas attic aunt autumn avenue baby bacon
badge baker balance balloon bamboo banana banner barrel basket bath beach beacon bear beaver bedroom bee beetle
bell belong bench berry better bicycle bird biscuit bitter blanket blossom blue board boat bonus book borrow
bottle bottom bowl branch bread breeze brick bridge bright brother brush bubble bucket buffalo bullet bunny
burrow butter button cabbage cabin cactus camera canal candle canoe canvas captain career carpet carrot castle
cattle ceiling cellar centre cereal chapter cheese cherry chess chicken chimney circle circus city clever cliff
clock cloud coconut coffee collar colour comet common copper coral corner cottage cotton cousin cradle cream
creek cricket cross crystal cucumber curtain daisy dancer danger daughter dawn december degree desert dessert
diamond different dinner dinosaur doctor dollar dolphin donkey door dragon drawer dream dress drummer duck eagle
ear early earth east echo effect eight elbow eleven engine errand error evening event excess eye fabric factory
falcon family farmer feather february fellow fence ferry festival fiddle field fifteen finger fire flannel flower
flute follow food football forest fossil fountain fox friend frog fruit funnel funny furniture gallery garden
garlic gate gentle giraffe glass globe glove goat goose gorilla grammar grape grass gravel green guitar hammer
hammock happy harbour hazel heart hedge hello helmet hill hobby hollow honey horse hotel house hundred hurry
illness indeed insect island ivory jacket jelly jewel jigsaw journey jungle kangaroo kettle keyboard kitchen
kitten knee ladder lake lantern laurel lava lawn leather lemon lesson letter level lilac lily little lizard llama
lobster locket lotus luggage lunch magnet mammal mango maple marble market marmalade matter meadow melon memory
message meteor middle milk million minute mirror mission mitten mountain mouse muffin museum mushroom narrow nature
needle nephew nettle night noodle noon north nutmeg oak oatmeal ocean office olive onion orange orchard otter
oven owl oxygen paddle palace pancake panda paper paprika parade parrot passage pattern pea peach peanut pebble
pencil penguin pepper piano picture pigeon pillow pineapple planet pocket poem pony poppy possess potato pottery
pretzel pudding pumpkin puppet puppy purple puzzle quarter queen quilt rabbit radish railroad rain raspberry
rattle raven reader referee ribbon river robin rocket room rooster rubber ruler saddle saffron sailor salad
sandal scarf school seesaw settle seven shadow sheep shoulder shovel silver sister sleep slipper snail snow soccer
sorrow spider spinach spoon spring squirrel stable station street success suffix sugar summer sunset supper
swallow swan sweet syllable table tadpole tailor teacher tennis terrace thirteen thunder tiger timber toffee tomato
tomorrow tooth tower traffic tree trumpet tulip tunnel turkey turtle umbrella uncle valley vanilla vessel village
violin visitor voice volcano waffle wagon walnut water wheel whistle willow window winner winter wizard wonder
wool yarn yellow yogurt zebra zigzag zipper
""".split()

SYLLABLES = """
ba be bi bo bu ca ce co cu da de di do du fa fe fi fo ga ge go gu ha he hi ho hu ja je jo ka ke ki la le li lo lu
ma me mi mo mu na ne ni no nu pa pe pi po pu qua ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi
xa xe ya ye yo za ze zo an en in on un ar er ir or al el il ol as es is os at et it ot am em im ap ep ip
ell ess itt oll ann err ss tt ll nn mm pp cc ee oo sh ch th st tr br cr gr pl bl ck ng nt nd rt ght
""".split()
