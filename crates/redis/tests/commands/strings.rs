//! Commands of strings.

use super::server::check;

#[test]
fn integers_are_counted() {
    check(
        r#"
        > INCRBY n 40
        40
        > INCR n
        41
        > GET n
        "41"
        > INCRBY n 9223372036854775807
        -ERR increment or decrement would overflow
        > INCRBY n x
        -ERR value is not an integer or out of range
        > STRLEN n
        2
        "#,
    );
}
