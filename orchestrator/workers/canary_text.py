"""The text on which a sampler's numbers are compared with the learner's: ordinary English and maths.

Ids without a meaning have log-probabilities near −15, where bfloat16 rounds most and differs most
from one kernel to another. A language model is sure of ordinary text, so that rounding is small on
it and other weights show. Changing the text changes nothing but the canaries of new checkpoints.
"""

TEXT = """\
A train leaves the station at nine in the morning and travels at 80 kilometres per hour. A second \
train leaves the same station one hour later and follows it at 100 kilometres per hour. When the \
second train starts, the first is already 80 kilometres ahead. Every hour the distance between them \
shrinks by 100 - 80 = 20 kilometres. The second train therefore needs 80 / 20 = 4 hours, and it \
catches up at two in the afternoon, 400 kilometres from the station.

The water in a lake is warmest at its surface in summer. In autumn the surface cools, the cold water \
becomes heavier than the water below it, and it sinks. This goes on until the whole lake has a \
temperature of four degrees. Water that is colder than this is lighter again, so it stays on top and \
freezes there. Fish can live through the winter under the ice, because the bottom of the lake stays \
at four degrees.

Anna has 3 boxes with 12 pencils in each box. She gives 7 pencils to her brother and 5 pencils to \
her friend. How many pencils does she have left? First we find how many pencils she had: 3 * 12 = 36. \
Then we find how many she gave away: 7 + 5 = 12. Finally we subtract: 36 - 12 = 24. Anna has 24 \
pencils left. The answer is 24.

To solve the equation 2x + 6 = 20, subtract 6 from both sides, which gives 2x = 14. Then divide both \
sides by 2, which gives x = 7. We can check the solution by putting it back into the equation: \
2 * 7 + 6 = 14 + 6 = 20, so the solution is correct.

The old bridge over the river was built of stone more than three hundred years ago. Farmers from the \
villages on the other side crossed it every week on their way to the market. They brought eggs, \
cheese and apples, and they went home with cloth, salt and tools. When the railway came, most people \
used the new iron bridge a mile to the north, and the old road became quiet. Today it is a place \
where people walk in the evening and look at the water.

Let f(x) = x^2 - 4x + 3. We want to find the values of x for which f(x) = 0. The polynomial can be \
factored as (x - 1)(x - 3), so the roots are x = 1 and x = 3. The graph is a parabola that opens \
upwards. Its lowest point lies in the middle between the roots, at x = 2, where f(2) = 4 - 8 + 3 = -1.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

A shop sells a coat for 120 dollars. In January the price is reduced by 25 percent. One quarter of \
120 is 30, so the coat now costs 120 - 30 = 90 dollars. In February the price goes up again by 10 \
percent of the reduced price, that is, by 9 dollars. The coat then costs 90 + 9 = 99 dollars, which \
is still 21 dollars less than at the beginning.

The heart pumps blood through the body. Blood that is rich in oxygen leaves the left side of the \
heart and flows through the arteries to the muscles and the organs. There it gives up its oxygen and \
takes in carbon dioxide. It returns through the veins to the right side of the heart, which sends it \
to the lungs. In the lungs the blood releases the carbon dioxide and takes up new oxygen, and then \
the circle begins again.

There are 5 red balls and 3 blue balls in a bag. Two balls are taken out, one after the other, \
without putting the first one back. The probability that the first ball is red is 5/8. If it is red, \
4 red balls are left among 7, and the probability that the second ball is also red is 4/7. The \
probability that both balls are red is therefore 5/8 * 4/7 = 20/56 = 5/14.

Thank you for your letter. I am glad to hear that you and your family are well. We moved into the new \
house at the end of March, and we are still unpacking. The children like their school and have \
already found friends in our street. If you have time in the summer, please come and stay with us for \
a week. The garden is large enough for all of us, and the sea is only half an hour away by bus.

In a right triangle the two shorter sides have lengths 6 and 8. By the theorem of Pythagoras the \
square of the longest side is 6^2 + 8^2 = 36 + 64 = 100, so the longest side has length 10. The area \
of the triangle is half of the product of the shorter sides, which is 6 * 8 / 2 = 24, and its \
perimeter is 6 + 8 + 10 = 24 as well.

A square garden has a fence of 48 metres around it. Each side is 48 / 4 = 12 metres long, so the \
area of the garden is 12 * 12 = 144 square metres. A path of 2 metres is built along the inside of \
the fence. The part that is left in the middle is a square with sides of 12 - 2 - 2 = 8 metres, and \
its area is 64 square metres. The path covers 144 - 64 = 80 square metres.

People have looked at the stars for thousands of years. Sailors used them to find their way across \
the sea, and farmers used them to know when to plant. The planets are different from the stars: they \
move slowly from one group of stars to the next, and they do not shine by themselves. They reflect \
the light of the sun, as the moon does. With a small telescope one can see the rings of Saturn and \
the four largest moons of Jupiter.

The sum of the numbers from 1 to 100 can be found without adding them one by one. Write the numbers \
in pairs: 1 + 100 = 101, 2 + 99 = 101, 3 + 98 = 101, and so on. There are 50 such pairs, so the sum \
is 50 * 101 = 5050. In general, the sum of the first n numbers is n(n + 1) / 2.
"""
