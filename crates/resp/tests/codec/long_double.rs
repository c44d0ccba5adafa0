//! Sums of long doubles, compared with the machine's own: a small C program does the sums, if there
//! is a C compiler and `long double` has 64 bits of significand.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::number::{SUMS, sum};

/// Reads lines of two numbers. Prints their sum with 17 decimals, or why there is none.
const PROGRAM: &str = r#"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int number(const char *text, long double *value) {
    char *end;
    errno = 0;
    *value = strtold(text, &end);
    int is_out = errno == ERANGE && (isinf(*value) || *value == 0);
    return *text != 0 && *end == 0 && !is_out && !isnan(*value);
}

int main(void) {
    static char one[8192], other[8192], text[8192];
    if (LDBL_MANT_DIG != 64) return 77;
    while (scanf("%8191s %8191s", one, other) == 2) {
        long double a, b;
        if (!number(one, &a) || !number(other, &b)) {
            puts("refused");
            continue;
        }
        long double sum = a + b;
        if (!isfinite(sum)) {
            puts("overflow");
            continue;
        }
        int length = snprintf(text, sizeof text, "%.17Lf", sum);
        while (text[length - 1] == '0') length--;
        if (text[length - 1] == '.') length--;
        text[length] = 0;
        puts(text[0] == '-' && text[1] == '0' && text[2] == 0 ? "0" : text);
    }
    return 0;
}
"#;

/// Random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn digits(&mut self, length: u64) -> String {
        (0..length).map(|_| char::from(b'0' + self.below(10) as u8)).collect()
    }

    /// Returns the text of a number: mostly such as people write, sometimes at the ends of the
    /// format.
    fn number(&mut self) -> String {
        let sign = ["", "-", "+"][self.below(3) as usize];
        let (whole, fraction) = (self.below(22), 1 + self.below(22));
        let (whole, fraction) = (self.digits(whole), self.digits(fraction));
        let bits = self.next() >> self.below(64);
        let small = self.below(300) as i64 - 150;
        let number = match self.below(12) {
            0..3 => format!("{whole}.{fraction}"),
            3 => fraction,
            4 => format!("{fraction}.{whole}e{}", small / 5),
            5 => format!("{whole}.{fraction}e{small}"),
            6 => format!("{fraction}e{}", self.below(10_000) as i64 - 5000),
            7 => format!("0x{bits:x}p{small}"),
            8 => format!("0x{bits:x}.{:x}p{}", self.next(), small / 3),
            9 => format!("0x{bits:x}p{}", self.below(33_500) as i64 - 17_000),
            // Powers of two and their neighbours, where sums are ties.
            10 => format!("{}", (1u128 << self.below(80)) + u128::from(self.below(3))),
            _ => format!("0x{:x}p{}", 1 + self.below(5), small / 2),
        };
        sign.to_owned() + &number
    }
}

#[test]
fn sums_are_as_the_machine_s() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("long-double.c"), folder.join("long-double"));
    std::fs::write(&source, PROGRAM).unwrap();
    let compiled = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).arg("-lm").status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: there is no C compiler");
        return;
    }
    let seed = std::env::var("REMORA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    let mut pairs: Vec<(String, String)> = (0..10_000).map(|_| (random.number(), random.number())).collect();
    // The program cuts its input at blanks.
    let table =
        SUMS.iter().filter(|(one, other, _)| [one, other].iter().all(|text| !text.is_empty() && !text.contains(' ')));
    pairs.extend(table.map(|(one, other, _)| (one.to_string(), other.to_string())));
    // A few have as many digits as there may be.
    pairs.extend((0..20).map(|_| {
        let length = random.below(5000);
        let (digits, power) = (random.digits(length), random.below(4000));
        (format!("1.{digits}e-{power}"), format!("{}e-{power}", &digits[length as usize / 2..]))
    }));
    let lines: String = pairs.iter().map(|(one, other)| format!("{one} {other}\n")).collect();
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let written = writer.join().unwrap();
    if output.status.code() == Some(77) {
        println!("skipped: this machine's long double is another format");
        return;
    }
    written.unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), pairs.len());
    for ((one, other), answer) in pairs.iter().zip(answers.lines()) {
        assert_eq!(sum(one, other), answer, "{one} + {other}, seed {seed}");
    }
}
