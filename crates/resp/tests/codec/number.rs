//! Numbers as Redis reads and prints them: tables of values, and laws that hold for all values.

use proptest::prelude::*;
use remora_resp::number::{Double, Integer, LONG_DOUBLE_BYTES_MAX, LongDouble, parse_double, parse_integer};

fn integer(value: i64) -> String {
    String::from_utf8(Integer::new(value).as_ref().to_vec()).unwrap()
}

fn double(value: f64) -> String {
    String::from_utf8(Double::new(value).as_ref().to_vec()).unwrap()
}

#[test]
fn integers() {
    for value in [0, 1, -1, 9, 10, 100, -100, 1_234_567_890, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
        assert_eq!(integer(value), value.to_string());
        assert_eq!(parse_integer(value.to_string().as_bytes()), Some(value));
    }
    let refused = [
        "",
        "-",
        "+1",
        " 1",
        "1 ",
        "01",
        "-01",
        "00",
        "-0",
        "+0",
        "1.0",
        "1e3",
        "0x1",
        "a",
        "1a",
        "--1",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "99999999999999999999",
        "1\n",
        "1\0",
    ];
    refused.iter().for_each(|text| assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}"));
}

#[test]
fn scores_are_read_as_strtod_reads_them() {
    let table = [
        ("0", 0.0),
        ("1", 1.0),
        ("+1", 1.0),
        ("-1.5", -1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("00012", 12.0),
        ("1e5", 1e5),
        ("1E+5", 1e5),
        ("1e-5", 1e-5),
        ("0e999999999999999999999", 0.0),
        ("0.0e-99999", 0.0),
        ("1.7976931348623157e308", f64::MAX),
        ("1.7976931348623158e308", f64::MAX),
        ("4.9406564584124654e-324", f64::from_bits(1)),
        ("2.4703282292062328e-324", f64::from_bits(1)),
        ("inf", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
        ("+Infinity", f64::INFINITY),
        ("INFINITY", f64::INFINITY),
        // Hexadecimal.
        ("0x10", 16.0),
        ("-0X1.8p1", -3.0),
        ("0x.8", 0.5),
        ("0x8.", 8.0),
        ("0xAbC", 2748.0),
        ("0x1P-3", 0.125),
        ("0x0p99999999999999999999", 0.0),
        ("0x1.fffffffffffffp1023", f64::MAX),
        // Just below the middle between the greatest double and what would be next.
        ("0x1.fffffffffffff7ffffffffffp1023", f64::MAX),
        ("0x1p-1074", f64::from_bits(1)),
        ("0x1.8p-1074", f64::from_bits(2)),
        ("0x0.8000000000000000000000000000000000001p-1074", f64::from_bits(1)),
        ("0x1p-1022", f64::MIN_POSITIVE),
        ("0x0.fffffffffffff8p-1022", f64::MIN_POSITIVE),
        ("0x0.fffffffffffffp-1022", f64::from_bits((1 << 52) - 1)),
        // Ties go to the even neighbour, and any bit behind decides.
        ("0x1.00000000000008", 1.0),
        ("0x1.000000000000080000000000000000000001", 1.0 + f64::EPSILON),
        ("0x1.00000000000018", 1.0 + 2.0 * f64::EPSILON),
        ("0x100000000000000000000000000000000000000p-152", 1.0),
    ];
    for (text, value) in table {
        assert_eq!(parse_double(text.as_bytes()), Some(value), "{text:?}");
    }
    for text in ["-0", "-0.0", "-0x0p1"] {
        assert_eq!(parse_double(text.as_bytes()).map(f64::to_bits), Some(0), "{text:?}");
    }
    let refused = [
        "",
        "+",
        "-",
        ".",
        "nan",
        "-nan",
        "NaN",
        "nan(1)",
        "x",
        "1x",
        " 1",
        "1 ",
        "\t1",
        "1\0",
        "1e",
        "1e+",
        "e5",
        ".e5",
        "1e5.0",
        "--1",
        "+-1",
        "1_0",
        "infi",
        "infinit",
        "infinityx",
        "0x",
        "0x.",
        "0xg",
        "0x1p",
        "0x1p+",
        "0x1e+5",
        "0b1",
        "1e309",
        "-1e309",
        "1e99999999999999999999",
        "1e-400",
        "1e-99999999999999999999",
        "2.4703282292062327e-324",
        "0x1p1024",
        "0x1.fffffffffffff8p1023",
        "0x1p-1075",
        "0x1p-1076",
        "0x1p99999999999999999999",
        "0x1p-99999999999999999999",
        "\u{661}",
    ];
    refused.iter().for_each(|text| assert_eq!(parse_double(text.as_bytes()), None, "{text:?}"));
}

#[test]
fn doubles_print_in_the_shortest_form() {
    let table = [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.0, "-1"),
        (1.5, "1.5"),
        (0.1, "0.1"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-0.001, "-0.001"),
        (1.0 / 3.0, "0.3333333333333333"),
        (100.0, "100"),
        (1e8, "100000000"),
        (1_700_000_000_123.0, "1700000000123"),
        (9_007_199_254_740_993.0, "9007199254740992"),
        (1e16, "10000000000000000"),
        (99_999_999_999_999_984.0, "99999999999999984"),
        (1e17, "1e+17"),
        (-1e17, "-1e+17"),
        (1.5e20, "1.5e+20"),
        (f64::MAX, "1.7976931348623157e+308"),
        (-f64::MAX, "-1.7976931348623157e+308"),
        (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
        (f64::from_bits(1), "5e-324"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (0.0000015, "1.5e-6"),
        (0.0012345678, "0.0012345678"),
        (0.00012345678, "1.2345678e-4"),
        (1234.12345678, "1234.12345678"),
        (12345.123456, "12345.123456"),
        (12345.1234567, "1.23451234567e+4"),
        (1691655923.123456, "1691655923.123456"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ];
    for (value, text) in table {
        assert_eq!(double(value), text);
    }
}

/// Adds two numbers as `INCRBYFLOAT` does. `refused` is for text that is no number, `overflow` for
/// sums that are none.
pub(crate) fn sum(one: &str, other: &str) -> String {
    let (Some(one), Some(other)) = (LongDouble::parse(one.as_bytes()), LongDouble::parse(other.as_bytes())) else {
        return "refused".to_owned();
    };
    let Some(sum) = one.add(other) else { return "overflow".to_owned() };
    let mut text = Vec::new();
    sum.write(&mut text);
    String::from_utf8(text).unwrap()
}

/// Pairs of numbers and their sums. `long_double.rs` compares them with the machine's own.
pub(crate) const SUMS: &[(&str, &str, &str)] = &[
    ("0.1", "0.2", "0.3"),
    ("1.1", "1e15", "1000000000000001.0999755859375"),
    ("0", "1e-18", "0"),
    ("0", "-1e-18", "0"),
    ("10.50", "0.1", "10.6"),
    ("5.0e3", "2.0e2", "5200"),
    ("3", "1.1", "4.1"),
    ("-5", "5", "0"),
    ("-0", "-0", "0"),
    ("1.23", "-1.23", "0"),
    ("-1.5", "0.25", "-1.25"),
    // 2^64 - 1 has 64 bits. 2^64 + 1 has 65 and is a tie, which goes to the even neighbour.
    ("18446744073709551615", "0", "18446744073709551615"),
    ("18446744073709551615", "1", "18446744073709551616"),
    ("18446744073709551616", "1", "18446744073709551616"),
    ("18446744073709551618", "1", "18446744073709551620"),
    ("18446744073709551616", "1.0000001", "18446744073709551618"),
    ("18446744073709551616", "-0.5", "18446744073709551616"),
    ("18446744073709551616", "-0.5000001", "18446744073709551615"),
    // Apart by more than the significand.
    ("0x1p64", "0x1.000000000000002p0", "18446744073709551618"),
    ("0x1p64", "0x1p-16000", "18446744073709551616"),
    // What the lower number loses decides a tie.
    ("0x1p63", "0x1p-1", "9223372036854775808"),
    ("0x1p63", "0x1.0000000000000002p-1", "9223372036854775809"),
    ("9223372036854775810", "-0x1p-1", "9223372036854775810"),
    ("9223372036854775810", "-0x1.0000000000000002p-1", "9223372036854775809"),
    // 2^200 + 2^136 is a tie. One more decides it.
    (
        "1606938044258990275629074378272922849168826893285325497434112",
        "0",
        "1606938044258990275541962092341162602522202993782792835301376",
    ),
    (
        "1606938044258990275629074378272922849168826893285325497434113",
        "0",
        "1606938044258990275716186664204683095815450792787858159566848",
    ),
    // Halves of the 17th decimal: 5e-18 is not exact in binary, 2^-18 times 5^17 is.
    ("0x1p-18", "0", "0.00000381469726562"),
    ("0x3p-18", "0", "0.00001144409179688"),
    ("1e-17", "0", "0.00000000000000001"),
    ("-1e-17", "0", "-0.00000000000000001"),
    ("0x10", "0x.8p0", "16.5"),
    // 10^20 has 67 bits, so its neighbours are 8 apart.
    ("1e20", "1", "100000000000000000000"),
    ("1e20", "4.0000001", "100000000000000000008"),
    ("1e25", "0", "10000000000000000000000000"),
    ("1e30", "0", "1000000000000000000024696061952"),
    ("1e4932", "1e4932", "overflow"),
    ("inf", "1", "overflow"),
    ("1", "-Infinity", "overflow"),
    ("inf", "-inf", "overflow"),
    ("1e4933", "0", "refused"),
    ("-1e4933", "0", "refused"),
    // The least number is 3.6e-4951, and half of it is rounded up.
    ("2e-4951", "0", "0"),
    ("1e-4951", "0", "refused"),
    ("1e-4952", "0", "refused"),
    ("1e-9999999999999999999999", "0", "refused"),
    ("0e9999999999999999999999", "7", "7"),
    ("nan", "1", "refused"),
    (" 1", "1", "refused"),
    ("1 ", "1", "refused"),
    ("", "1", "refused"),
    ("abc", "1", "refused"),
];

#[test]
fn long_doubles_add_exactly() {
    for (one, other, expected) in SUMS {
        assert_eq!(sum(one, other), *expected, "{one} + {other}");
        assert_eq!(sum(other, one), *expected, "{other} + {one}");
    }
}

#[test]
fn long_text_is_refused() {
    let text = format!("0.{}", "1".repeat(LONG_DOUBLE_BYTES_MAX - 2));
    assert_eq!(sum(&text, "0"), "0.11111111111111111");
    assert_eq!(sum(&(text + "1"), "0"), "refused");
    assert!(LongDouble::parse(b"inf").is_some_and(|value| !value.is_finite()));
}

#[test]
fn the_greatest_number_prints_all_its_digits() {
    let mut text = Vec::new();
    LongDouble::parse(b"0x1.fffffffffffffffep16383").unwrap().write(&mut text);
    assert_eq!(text.len(), 4933);
    assert!(text.starts_with(b"11897314953572317650"));
    LongDouble::parse(&text[..]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn integers_read_back(value: i64) {
        prop_assert_eq!(parse_integer(integer(value).as_bytes()), Some(value));
    }

    #[test]
    fn only_what_printing_gives_is_an_integer(text in "-?[0-9]{1,21}") {
        let expected = text.parse::<i64>().ok().filter(|value| value.to_string() == text);
        prop_assert_eq!(parse_integer(text.as_bytes()), expected);
    }

    #[test]
    fn doubles_read_back(bits: u64) {
        let value = f64::from_bits(bits);
        if !value.is_nan() {
            prop_assert_eq!(parse_double(double(value).as_bytes()), Some(value));
        }
    }

    #[test]
    fn short_doubles_read_back(digits in -1_000_000_000i64..1_000_000_000, exponent in -25i32..25) {
        let value: f64 = format!("{digits}e{exponent}").parse().unwrap();
        prop_assert_eq!(parse_double(double(value).as_bytes()), Some(value));
    }

    #[test]
    fn hexadecimal_doubles_are_exact(bits: u64) {
        let value = f64::from_bits(bits & !(1 << 63));
        if value.is_finite() {
            let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
            let text = format!("0x{}.{fraction:013x}p{}", u8::from(exponent != 0), exponent.max(1) - 1023);
            prop_assert_eq!(parse_double(text.as_bytes()), Some(value));
        }
    }

    #[test]
    fn nothing_panics(text in prop::collection::vec(prop::sample::select(b"0123456789.+-eExXpPinfaN \0".to_vec()), 0..30)) {
        let _ = (parse_integer(&text), parse_double(&text), LongDouble::parse(&text));
    }
}
