// Bessel functions of orders 0 and 1, spherical Bessel and Airy functions.

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "lowering/elementwise.h"
#include "lowering/series.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = std::numbers::pi;

// --- Chebyshev series, computed with forty digits by sampling the function at Chebyshev nodes.

// exp(-x) I0(x) for 0 <= x <= 8, in x/4 - 1.
constexpr double kI0eSmall[] = {
    0.33839763720473803,    -0.3046826723431984,     0.17162090152220877,    -0.09490109704804764,
    0.04930528423967071,    -0.02373741480589947,    0.010546460394594998,   -0.004324309995050576,
    0.0016394756169413357,  -0.0005763755745385824,  0.00018850288509584165, -5.754195010082104e-05,
    1.6448448070728896e-05, -4.4167383584587505e-06, 1.1173875391201037e-06, -2.670793853940612e-07,
    6.046995022541919e-08,  -1.300025009986248e-08,  2.6598237246823866e-09, -5.189795601635263e-10,
    9.675809035373237e-11,  -1.726826291441556e-11,  2.95505266312964e-12,   -4.856446783111929e-13,
    7.676185498604936e-14,  -1.1685332877993451e-14, 1.715391285555133e-15,  -2.431279846547955e-16,
    3.3307945188222384e-17, -4.4153416464793395e-18, 5.669178006921496e-19};

// sqrt(x) exp(-x) I0(x) for x >= 8, in 16/x - 1.
constexpr double kI0eLarge[] = {
    0.4022452055070544,      0.0033691164782556943,   6.889758346916825e-05,
    2.8913705208347567e-06,  2.0489185894690638e-07,  2.266668990498178e-08,
    3.3962320257083865e-09,  4.94060238822497e-10,    1.1889147107846439e-11,
    -3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12,
    7.180124451383666e-13,   3.8527783827421426e-13,  1.54008621752141e-14,
    -4.150569347287222e-14,  -9.554846698828307e-15,  3.8116806693526224e-15,
    1.7725601330565263e-15,  -3.425485619677219e-16,  -2.8276239805165836e-16,
    3.461222867697461e-17,   4.46562142029676e-17,    -4.830504485944182e-18,
    -7.233180487874754e-18,  9.921475412173699e-19,   1.193650890845982e-18};

// exp(-x) I1(x) / x for 0 <= x <= 8, in x/4 - 1.
constexpr double kI1eSmall[] = {
    0.12629359322181682,     -0.17641651835783406,    0.1026436586898471,
    -0.05294598120809499,    0.024726449030626516,    -0.010564084894626197,
    0.004156422944312888,    -0.0015135724506312532,  0.0005122859561685758,
    -0.00016176081582589674, 4.781565107550054e-05,   -1.3273163656039436e-05,
    3.4702513081376785e-06,  -8.568720264695455e-07,  2.0032947535521353e-07,
    -4.445059128796328e-08,  9.381537386495773e-09,   -1.8872497517228294e-09,
    3.625590281552117e-10,   -6.663489723502027e-11,  1.1736186298890901e-11,
    -1.9839743977649436e-12, 3.223793365945575e-13,   -5.042185504727912e-14,
    7.600684294735408e-15,   -1.1055969477353862e-15, 1.5536319577362005e-16,
    -2.111421214358166e-17,  2.7779141127610464e-18,  -3.541581772542136e-19};

// sqrt(x) exp(-x) I1(x) for x >= 8, in 16/x - 1.
constexpr double kI1eLarge[] = {
    0.38928811750914005,     -0.009761097491361469,   -0.00011058893876262371,
    -3.882564808877691e-06,  -2.512236237870209e-07,  -2.6314688468895196e-08,
    -3.835380385964237e-09,  -5.589743462196584e-10,  -1.8974958123505413e-11,
    3.2526035830154884e-11,  1.4125807436613782e-11,  2.0356285441470896e-12,
    -7.198551776245908e-13,  -4.0835511110921974e-13, -2.1015418427726643e-14,
    4.272440016711951e-14,   1.0420276984128802e-14,  -3.8144030724370075e-15,
    -1.8803547755107825e-15, 3.3082023109209285e-16,  2.96262899764595e-16,
    -3.209525921993424e-17,  -4.6503053684893586e-17, 4.414348323071708e-18,
    7.517296310842105e-18,   -9.314178867326884e-19,  -1.242193275194891e-18};

// sqrt(x) exp(x) K0(x) for x >= 2, in 4/x - 1.
constexpr double kK0Far[] = {
    1.2201515410329777,      -0.0314481013119645,    0.0015698838857300533,
    -0.00012849549581627802, 1.39498137188765e-05,   -1.8317555227191195e-06,
    2.766813639445015e-07,   -4.660489897687948e-08, 8.574034017414225e-09,
    -1.6975345093890614e-09, 3.5773972814003283e-10, -7.957489244477396e-11,
    1.8559491149549264e-11,  -4.514597883374519e-12, 1.1403405882073441e-12,
    -2.9800969231481784e-13, 8.032890775068375e-14,  -2.2275133267462965e-14,
    6.340076476276646e-15,   -1.848593377920907e-15, 5.5120559994043335e-16,
    -1.6782311257549006e-16, 5.2103917776435543e-17};

// sqrt(x) exp(x) K1(x) for x >= 2, in 4/x - 1.
constexpr double kK1Far[] = {
    1.3603130952422213,      0.10392373657681724,     -0.002857816859622779,
    0.00019521551847135162,  -1.936197974166083e-05,  2.406484947837217e-06,
    -3.5019606030878126e-07, 5.7410841254500495e-08,  -1.0345762465678097e-08,
    2.0150497551970347e-09,  -4.1903547593419254e-10, 9.218315187605315e-11,
    -2.129967838427791e-11,  5.139639673482343e-12,   -1.2891739609498229e-12,
    3.348419666052243e-13,   -8.976705182010146e-14,  2.4771544242195988e-14,
    -7.0198370892147685e-15, 2.038703166239861e-15,   -6.057047270643018e-16,
    1.8380935752430455e-16,  -5.689462849193648e-17};

// J0(x) / ((x^2 - a^2) (x^2 - b^2)) for 0 <= x <= 5, a and b its first zeros, in 2 (x/5)^2 - 1.
constexpr double kJ0Near[] = {
    0.003433775195443006,    -0.001974794511586004,  0.0002472802343211527,
    -1.7951655945298798e-05, 8.614299472476033e-07,  -2.9521425632684864e-08,
    7.609233569353203e-10,   -1.531306324653633e-11, 2.475309497955091e-13,
    -3.2866707304697332e-15, 3.6501313955036886e-17, -3.4418858692258494e-19};

// J1(x) / (x (x^2 - a^2) (x^2 - b^2)) for 0 <= x <= 5, a and b its first zeros above 0, in 2
// (x/5)^2 - 1.
constexpr double kJ1Near[] = {
    0.0004546530983912736, -0.00021348093861811067, 2.2341253121436404e-05, -1.38767402387634e-06,
    5.806885161405081e-08, -1.7621593742140618e-09, 4.072176387317086e-11,  -7.422794511260187e-13,
    1.096138032866157e-14, -1.3392526677386197e-16, 1.3771260961669168e-18, -1.208775673915002e-20};

// Y0(x) - 2/pi log(x) J0(x) for 0 <= x <= 5, in 2 (x/5)^2 - 1.
constexpr double kY0Near[] = {
    0.20605257634092228,     -0.13017522381095709,  -0.291894720865317,      0.10268287966073635,
    -0.014279159901781987,   0.0011164629864165486, -5.677525113380376e-05,  2.0406703657627165e-06,
    -5.476431029755533e-08,  1.141220652090372e-09, -1.9021689490013906e-11, 2.5954970583106197e-13,
    -2.9540707750193604e-15, 2.848154182311252e-17};

// (Y1(x) - 2/pi (log(x) J1(x) - 1/x)) / x for 0 <= x <= 5, in 2 (x/5)^2 - 1.
constexpr double kY1Near[] = {
    0.0531074450560213,     0.14189450894667655,   -0.08834328868289824,   0.017111109934210778,
    -0.0017057852565133666, 0.000105257530278434,  -4.44507526565354e-06,  1.3699277670028168e-07,
    -3.222883768023259e-09, 5.984534092223177e-11, -9.000965667133812e-13, 1.1194186560306676e-14,
    -1.1707921590181557e-16};

// Hankel's P and x Q (DLMF 10.17.3) of either order for x >= 5, in 2 (5/x)^2 - 1.
constexpr double kP0[] = {0.9986523398776954,      -0.00132937162125028,   1.761305551290559e-05,
                          -6.319367118733069e-07,  3.948825587093808e-08,  -3.5409678948019087e-09,
                          4.103246366872386e-10,   -5.765747662655223e-11, 9.423105578391987e-12,
                          -1.7401405706283885e-12, 3.5557750052411783e-13, -7.914641501338115e-14,
                          1.8959456362961828e-14,  -4.841483019175697e-15, 1.3078555195901338e-15,
                          -3.714050821413154e-16,  1.103023177871277e-16,  -3.410936210498114e-17};
constexpr double kQ0[] = {-0.12364702582167493,    0.0013190194049922607,   -3.218799121266175e-05,
                          1.6237093205642789e-06,  -1.2743289742032805e-07, 1.3513032763134409e-08,
                          -1.785075905119705e-09,  2.79085713479036e-10,    -4.988908027652833e-11,
                          9.950713667806645e-12,   -2.1751206043008833e-12, 5.140127162427605e-13,
                          -1.2993242656059178e-13, 3.4837635776889786e-14,  -9.84005757254373e-15,
                          2.9115274918592e-15,     -8.982151171303344e-16,  2.877768906557925e-16,
                          -9.542905011731343e-17,  3.2658161943648366e-17,  -1.150518178532616e-17,
                          4.16320426537859e-18};
constexpr double kP1[] = {1.00226762068534,       0.0022437352958079985,  -2.3071018862548286e-05,
                          7.639181732533905e-07,  -4.589685232343401e-08, 4.020515478419001e-09,
                          -4.586773977170972e-10, 6.373158962859246e-11,  -1.0327344567640412e-11,
                          1.8943274995111034e-12, -3.849703387824105e-13, 8.529914525779044e-14,
                          -2.03544697865723e-14,  5.180421738900549e-15,  -1.3953502148258493e-15,
                          3.9523601713314257e-16, -1.171117080126803e-16, 3.614078564738109e-17};
constexpr double kQ1[] = {0.37308734621468637,     -0.0018705189681051477,  4.0056994520460306e-05,
                          -1.914402839085632e-06,  1.458816510742199e-07,   -1.5183398644673165e-08,
                          1.979922260589517e-09,   -3.065981449437696e-10,  5.440233592059753e-11,
                          -1.0786652192538468e-11, 2.346352831758894e-12,   -5.522046856541826e-13,
                          1.390972848139383e-13,   -3.7181516752164614e-14, 1.0474063117829167e-14,
                          -3.091784202917912e-15,  9.518051831081499e-16,   -3.0436450667050517e-16,
                          1.0075487579997493e-16,  -3.4426306619813246e-17, 1.2110503970221687e-17};

// Ai(x) for -4.5 <= x <= 1.5, in x/3 + 1/2.
constexpr double kAiryNear[] = {
    0.12530963108121443,     0.11759174304088708,    -0.06942541595342515,
    -0.2763106970292145,     0.1915132779239748,     0.03353418936056628,
    -0.07242565178200086,    0.01965012614401482,    0.006443214584922202,
    -0.005034290195412213,   0.0006884692159276317,  0.0003597519239157019,
    -0.00016231016838114763, 1.0380713977737505e-05, 9.915227535157881e-06,
    -3.0090049092065624e-06, 4.315089001055016e-08,  1.642152461412829e-07,
    -3.6048275558349816e-08, -9.070074561629988e-10, 1.8196580673356882e-09,
    -3.0025647522350277e-10, -1.826595180192741e-11, 1.4449946507426653e-11,
    -1.8262978036418637e-12, -1.769055910930833e-13, 8.627555676848066e-14,
    -8.389100001898035e-15,  -1.151666642388051e-15, 4.0130807401629263e-16,
    -2.973998722146695e-17,  -5.5790575350901714e-18};

// x^(1/4) exp(z) Ai(x) for x >= 1.5, z = 2/3 x^(3/2), in 2 z(1.5)/z - 1.
constexpr double kAiryFar[] = {
    0.2757628500049323,     -0.005885195373365896,   0.00039555959502311414,
    -4.35710510462743e-05,  6.2710458061884e-06,     -1.075920737125344e-06,
    2.0967243471117523e-07, -4.5074358383733876e-08, 1.0484635459943652e-08,
    -2.603230658999552e-09, 6.830714858141729e-10,   -1.8797734251017187e-10,
    5.393098797808675e-11,  -1.6054136207484965e-11, 4.939171849757113e-12,
    -1.565422959686492e-12, 5.097239854611731e-13,   -1.7012028198688365e-13,
    5.808017433914173e-14,  -2.0248758346333406e-14, 7.197964927608774e-15,
    -2.605448021597685e-15, 9.591856903125024e-16,   -3.5876692417231217e-16,
    1.3620742860319394e-16, -5.2444250172449296e-17, 2.0462979860108217e-17,
    -8.085551394433279e-18};

// P and z Q of DLMF 9.7.9 for x >= 4.5, z = 2/3 x^(3/2), in 2 (z(4.5)/z)^2 - 1.
constexpr double kAiryP[] = {
    0.9995536016592858,      -0.00044255600249022215, 3.7464948785574585e-06,
    -9.147926787106577e-08,  4.0685023228430725e-09,  -2.6897245359447526e-10,
    2.363449618675092e-11,   -2.576195886826486e-12,  3.3274850157582603e-13,
    -4.9322091688066274e-14, 8.196203733152184e-15,   -1.5003542015688562e-15,
    2.9845588289887906e-16,  -6.382686146177526e-17};
constexpr double kAiryQ[] = {
    0.0689986813746521,      -0.00043847415305876955, 7.0285131258204494e-06,
    -2.4531075470483036e-07, 1.3871875616806255e-08,  -1.0947446912594973e-09,
    1.1046844858983291e-10,  -1.3475725842508134e-11, 1.9127441564251805e-12,
    -3.074037537243461e-13,  5.482078329678447e-14,   -1.068281395250709e-14,
    2.2475712780366504e-15,  -5.056721949945704e-16,  1.2071941989372259e-16,
    -3.038483751855352e-17,  8.020234897573714e-18,   -2.210076494801649e-18};

template <Value (*F)(Value)>
Values LowerUnary(Call& c) {
  return Result(c, F(Operand(c, c.spec().arguments.front().name, ResultComputeType(c))));
}

// 2 x - 1
Value Centred(Value x) { return Subtract(Add(x, x), ConstantLike(x, 1)); }

// --- modified Bessel functions of the first kind

// Both pieces of a function given on [0, 8] and beyond, at x >= 0.
Value FirstKindPieces(Value x, std::span<const double> small, std::span<const double> large) {
  const Value one = ConstantLike(x, 1), eight = ConstantLike(x, 8);
  const Value near = Minimum(x, eight), far = Maximum(x, eight);
  const Value at_near = Chebyshev(Subtract(Multiply(near, ConstantLike(x, 0.25)), one), small);
  const Value at_far =
      Multiply(Chebyshev(Subtract(Divide(ConstantLike(x, 16), far), one), large), Rsqrt(far));
  return Select(Gt(x, eight), at_far, at_near);
}

Value I0e(Value x) { return FirstKindPieces(Abs(x), kI0eSmall, kI0eLarge); }

Value I1e(Value x) {
  const Value magnitude = Abs(x);
  const Value one = ConstantLike(x, 1), eight = ConstantLike(x, 8);
  const Value pieces = FirstKindPieces(magnitude, kI1eSmall, kI1eLarge);
  const Value scaled = Select(Gt(magnitude, eight), one, magnitude);  // the near piece is I1e(x)/x
  const Value value = Multiply(pieces, scaled);
  return Select(Lt(x, ConstantLike(x, 0)), Negate(value), value);
}

Value I0(Value x) { return Multiply(Exp(Abs(x)), I0e(x)); }
Value I1(Value x) { return Multiply(Exp(Abs(x)), I1e(x)); }

TPU_RULE({.op = "i0", .lower = &LowerUnary<&I0>, .kinds = kFloat});
TPU_RULE({.op = "special_i0e", .lower = &LowerUnary<&I0e>, .kinds = kFloat});
TPU_RULE({.op = "special_i1", .lower = &LowerUnary<&I1>, .kinds = kFloat});
TPU_RULE({.op = "special_i1e", .lower = &LowerUnary<&I1e>, .kinds = kFloat});
TPU_RULE({.op = "special_modified_bessel_i0", .lower = &LowerUnary<&I0>, .kinds = kFloat});
TPU_RULE({.op = "special_modified_bessel_i1", .lower = &LowerUnary<&I1>, .kinds = kFloat});

// --- modified Bessel functions of the second kind: ascending series up to 2, Chebyshev series
// beyond. NaN left of zero, where their logarithm is.

// DLMF 10.31.2 and 10.25.2: -log(x/2) I0(x) + sum of psi(k+1) t^k / k!^2, t = x^2/4.
Value K0Near(Value x) {
  std::array<double, 13> first, psi;
  double factor = 1, digamma = -std::numbers::egamma;
  for (int k = 0; k < 13; ++k) {
    first[k] = factor;
    psi[k] = factor * digamma;
    factor /= (k + 1.0) * (k + 1.0);
    digamma += 1 / (k + 1.0);
  }
  const Value half = Multiply(x, ConstantLike(x, 0.5)), t = Square(half);
  return Subtract(Polynomial(t, psi), Multiply(Log(half), Polynomial(t, first)));
}

// DLMF 10.31.1: 1/x + log(x/2) I1(x) - x/4 sum of (psi(k+1) + psi(k+2)) t^k / (k! (k+1)!).
Value K1Near(Value x) {
  std::array<double, 13> first, psi;
  double factor = 1, digamma = -std::numbers::egamma;
  for (int k = 0; k < 13; ++k) {
    first[k] = factor;
    psi[k] = factor * (digamma + 0.5 / (k + 1.0));
    factor /= (k + 1.0) * (k + 2.0);
    digamma += 1 / (k + 1.0);
  }
  const Value half = Multiply(x, ConstantLike(x, 0.5)), t = Square(half);
  const Value regular = Subtract(Multiply(Log(half), Polynomial(t, first)), Polynomial(t, psi));
  const Value value = Add(Reciprocal(x), Multiply(half, regular));
  return Select(Eq(x, ConstantLike(x, 0)), ConstantLike(x, kInfinity), value);
}

template <Value (*Near)(Value), bool kScaled>
Value SecondKindPieces(Value x, std::span<const double> far_series) {
  const Value two = ConstantLike(x, 2);
  const Value near = Minimum(x, two), far = Maximum(x, two);
  Value at_near = Near(near);
  Value at_far =
      Multiply(Chebyshev(Subtract(Divide(ConstantLike(x, 4), far), ConstantLike(x, 1)), far_series),
               Rsqrt(far));
  if (kScaled) {
    at_near = Multiply(at_near, Exp(near));
  } else {
    at_far = Multiply(at_far, Exp(Negate(far)));
  }
  return Select(Gt(x, two), at_far, at_near);
}

Value K0(Value x) { return SecondKindPieces<&K0Near, false>(x, kK0Far); }
Value K1(Value x) { return SecondKindPieces<&K1Near, false>(x, kK1Far); }
Value K0e(Value x) { return SecondKindPieces<&K0Near, true>(x, kK0Far); }
Value K1e(Value x) { return SecondKindPieces<&K1Near, true>(x, kK1Far); }

TPU_RULE({.op = "special_modified_bessel_k0", .lower = &LowerUnary<&K0>, .kinds = kFloat});
TPU_RULE({.op = "special_modified_bessel_k1", .lower = &LowerUnary<&K1>, .kinds = kFloat});
TPU_RULE({.op = "special_scaled_modified_bessel_k0", .lower = &LowerUnary<&K0e>, .kinds = kFloat});
TPU_RULE({.op = "special_scaled_modified_bessel_k1", .lower = &LowerUnary<&K1e>, .kinds = kFloat});

// --- Bessel functions: up to 5 with their zeros split off, beyond by amplitudes of sine and cosine

// A zero as a float32 and what that lacks: x less the two has no error near the zero.
struct Zero {
  double high, low;
};
constexpr Zero kJ0Zeros[] = {{2.404825448989868, 1.0870590460455913e-07},
                             {5.520078182220459, -7.19341483347784e-08}};
constexpr Zero kJ1Zeros[] = {{3.8317060470581055, -7.685059315313556e-08},
                             {7.015586853027344, -1.8321172499646294e-07}};

Value NearArgument(Value x) { return Centred(Square(Multiply(x, ConstantLike(x, 0.2)))); }

// (x^2 - a^2) (x^2 - b^2) series(x) for 0 <= x <= 5.
Value WithZeros(Value x, std::span<const Zero> zeros, std::span<const double> series) {
  Value product = Chebyshev(NearArgument(x), series);
  for (const Zero& zero : zeros) {
    const Value high = ConstantLike(x, zero.high), low = ConstantLike(x, zero.low);
    const Value difference = Subtract(Subtract(x, high), low);
    product = Multiply(product, Multiply(difference, Add(Add(x, high), low)));
  }
  return product;
}

// 1 at 0, to the last digit.
Value J0Near(Value x) {
  const Value start = Subtract(ConstantLike(x, 1), Square(Multiply(x, ConstantLike(x, 0.5))));
  const Value tiny = Lt(x, ConstantLike(x, 1e-5));
  return Select(tiny, start, WithZeros(x, kJ0Zeros, kJ0Near));
}
Value J1Near(Value x) { return Multiply(x, WithZeros(Abs(x), kJ1Zeros, kJ1Near)); }

// DLMF 10.17.3-4 for x >= 5: sqrt(2/(pi x)) (P cos c - Q sin c) is J, with sine and cosine
// exchanged it is Y, and c is x - pi/4, for order 1 a quarter turn less. The turns are taken out by
// the addition theorems, since rounding x - pi/4 would shift the phase.
struct Oscillation {
  Value first, second;  // J and Y
};
Oscillation Far(Value x, int order) {
  const Value y = Centred(Square(Divide(ConstantLike(x, 5), x)));
  const Value p = order == 0 ? Chebyshev(y, kP0) : Chebyshev(y, kP1);
  const Value q = Divide(order == 0 ? Chebyshev(y, kQ0) : Chebyshev(y, kQ1), x);
  const Value sine = Sine(x), cosine = Cosine(x);
  const Value sum = Add(cosine, sine), difference = Subtract(sine, cosine);
  const Value scale = Rsqrt(Multiply(x, ConstantLike(x, kPi)));
  const Value cos_c = order == 0 ? sum : difference;
  const Value sin_c = order == 0 ? difference : Negate(sum);
  return {Multiply(scale, Subtract(Multiply(p, cos_c), Multiply(q, sin_c))),
          Multiply(scale, Add(Multiply(p, sin_c), Multiply(q, cos_c)))};
}

Value J0(Value x) {
  const Value five = ConstantLike(x, 5), magnitude = Abs(x);
  return Select(Gt(magnitude, five), Far(Maximum(magnitude, five), 0).first,
                J0Near(Minimum(magnitude, five)));
}

Value J1(Value x) {
  const Value five = ConstantLike(x, 5), magnitude = Abs(x);
  const Value far = Far(Maximum(magnitude, five), 1).first;
  const Value odd = Select(Lt(x, ConstantLike(x, 0)), Negate(far), far);
  return Select(Gt(magnitude, five), odd, J1Near(Clamp(Negate(five), x, five)));
}

// DLMF 10.8.2: the logarithm's part apart. NaN left of zero.
Value Y0(Value x) {
  const Value five = ConstantLike(x, 5), near = Minimum(x, five);
  const Value singular = Multiply(Multiply(ConstantLike(x, 2 / kPi), Log(near)), J0Near(near));
  return Select(Gt(x, five), Far(Maximum(x, five), 0).second,
                Add(singular, Chebyshev(NearArgument(near), kY0Near)));
}

Value Y1(Value x) {
  const Value five = ConstantLike(x, 5), near = Minimum(x, five);
  const Value singular = Multiply(ConstantLike(x, 2 / kPi),
                                  Subtract(Multiply(Log(near), J1Near(near)), Reciprocal(near)));
  const Value regular = Multiply(near, Chebyshev(NearArgument(near), kY1Near));
  const Value pole = ConstantLike(x, -kInfinity);
  const Value value = Select(Eq(x, ConstantLike(x, 0)), pole, Add(singular, regular));
  return Select(Gt(x, five), Far(Maximum(x, five), 1).second, value);
}

// sin(x) / x
Value SphericalJ0(Value x) {
  const Value one = ConstantLike(x, 1);
  const Value tiny = Lt(Abs(x), ConstantLike(x, 1e-20));
  const Value ratio = Select(IsInf(x), ConstantLike(x, 0), Divide(Sine(x), x));
  return Select(tiny, one, ratio);
}

TPU_RULE({.op = "special_bessel_j0", .lower = &LowerUnary<&J0>, .kinds = kFloat});
TPU_RULE({.op = "special_bessel_j1", .lower = &LowerUnary<&J1>, .kinds = kFloat});
TPU_RULE({.op = "special_bessel_y0", .lower = &LowerUnary<&Y0>, .kinds = kFloat});
TPU_RULE({.op = "special_bessel_y1", .lower = &LowerUnary<&Y1>, .kinds = kFloat});
TPU_RULE({.op = "special_spherical_bessel_j0",
          .lower = &LowerUnary<&SphericalJ0>,
          .kinds = kFloat});

// --- Airy function

// 2/3 x^(3/2)
Value AiryPhase(Value x) { return Multiply(Multiply(x, Sqrt(x)), ConstantLike(x, 2.0 / 3)); }

// NaN at the infinities, as on CPU.
Value AiryAi(Value x) {
  const auto constant = [&](double value) { return ConstantLike(x, value); };
  constexpr double kRight = 1.5, kLeft = 4.5;
  const double right_phase = 2.0 / 3 * kRight * std::sqrt(kRight);
  const double left_phase = 2.0 / 3 * kLeft * std::sqrt(kLeft);

  const Value inner = Clamp(constant(-kLeft), x, constant(kRight));
  const Value near = Chebyshev(Add(Divide(inner, constant(3)), constant(0.5)), kAiryNear);

  const Value right = Maximum(x, constant(kRight)), growth = AiryPhase(right);
  const Value decay = Multiply(Exp(Negate(growth)), Rsqrt(Sqrt(right)));
  const Value at_right =
      Multiply(decay, Chebyshev(Centred(Divide(constant(right_phase), growth)), kAiryFar));

  // Sine and cosine of the phase plus an eighth of a turn, by the addition theorem.
  const Value left = Maximum(Negate(x), constant(kLeft)), phase = AiryPhase(left);
  const Value y = Centred(Square(Divide(constant(left_phase), phase)));
  const Value sine = Sine(phase), cosine = Cosine(phase);
  const Value p = Multiply(Add(sine, cosine), Chebyshev(y, kAiryP));
  const Value q = Multiply(Subtract(cosine, sine), Divide(Chebyshev(y, kAiryQ), phase));
  const Value amplitude = Multiply(constant(1 / std::sqrt(2 * kPi)), Rsqrt(Sqrt(left)));
  const Value at_left = Multiply(amplitude, Subtract(p, q));

  const Value value =
      Select(Gt(x, constant(kRight)), at_right, Select(Lt(x, constant(-kLeft)), at_left, near));
  return Select(IsInf(x), constant(kNan), value);
}

TPU_RULE({.op = "special_airy_ai", .lower = &LowerUnary<&AiryAi>, .kinds = kFloat});

}  // namespace
}  // namespace torch_tpu::lowering
