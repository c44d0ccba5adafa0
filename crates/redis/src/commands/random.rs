//! What the commands have in common that draw random elements of a collection.

use crate::call::{Context, check_reply, integer};
use crate::error::Error;

/// The bytes of the shortest element in a reply.
const ELEMENT_BYTES_MIN: usize = 6;

/// Reads the number of elements that are wanted. A negative number is the number of draws, which
/// may draw an element again.
pub fn count(argument: &[u8]) -> Result<i64, Error> {
    match integer(argument)? {
        i64::MIN => Err(Error::new(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        )),
        count => Ok(count),
    }
}

/// Draws elements of a collection of `length` elements, and returns their places.
///
/// A positive count draws distinct elements, or all in their order if there are no more. With a
/// negative count each draw is among all. `bytes` returns how long an element is. It fails if the
/// reply would be too long.
pub fn draw(
    context: &mut Context,
    length: usize,
    count: i64,
    bytes: impl Fn(usize) -> usize,
) -> Result<Vec<usize>, Error> {
    if length == 0 {
        return Ok(Vec::new());
    }
    if count >= 0 {
        return Ok(distinct(context, length, usize::try_from(count).unwrap_or(usize::MAX)));
    }
    let count = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    check_reply(count.saturating_mul(ELEMENT_BYTES_MIN))?;
    let mut total = 0;
    let draws = (0..count).map(|_| {
        let place = context.random_below(length);
        total += ELEMENT_BYTES_MIN + bytes(place);
        check_reply(total).map(|()| place)
    });
    draws.collect()
}

/// Draws `count` distinct places below `length`.
fn distinct(context: &mut Context, length: usize, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..length).collect();
    if count < length {
        for drawn in 0..count {
            places.swap(drawn, drawn + context.random_below(length - drawn));
        }
        places.truncate(count);
    }
    places
}
