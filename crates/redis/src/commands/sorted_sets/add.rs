//! `ZADD` and `ZINCRBY`.

use crate::call::{Call, double};
use crate::commands::sorted_sets::reply;
use crate::error::Error;

/// What `ZADD` does with a member.
#[derive(Clone, Copy, Default, Debug)]
struct Options {
    /// Members that are there are left alone.
    only_new: bool,
    /// Members that are not there are not added.
    only_old: bool,
    /// A score only rises.
    only_greater: bool,
    /// A score only falls.
    only_less: bool,
    /// Changed scores are counted, and not only added members.
    counts_changes: bool,
    /// The number is added to the score.
    increments: bool,
}

pub(super) fn zadd(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, Options::default())
}

pub(super) fn zincrby(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, Options { increments: true, ..Options::default() })
}

impl Options {
    /// Reads the options. Returns them, and the arguments behind them.
    fn parse<'a, 'b>(mut self, mut args: &'b [&'a [u8]]) -> Result<(Options, &'b [&'a [u8]]), Error> {
        while let [option, rest @ ..] = args {
            match option.to_ascii_lowercase().as_slice() {
                b"nx" => self.only_new = true,
                b"xx" => self.only_old = true,
                b"gt" => self.only_greater = true,
                b"lt" => self.only_less = true,
                b"ch" => self.counts_changes = true,
                b"incr" => self.increments = true,
                _ => break,
            }
            args = rest;
        }
        if args.is_empty() || !args.len().is_multiple_of(2) {
            return Err(Error::SYNTAX);
        }
        if self.only_new && self.only_old {
            return Err(Error::new("ERR XX and NX options at the same time are not compatible"));
        }
        if [self.only_new, self.only_greater, self.only_less].iter().filter(|is_given| **is_given).count() > 1 {
            return Err(Error::new("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if self.increments && args.len() > 2 {
            return Err(Error::new("ERR INCR option supports a single increment-element pair"));
        }
        Ok((self, args))
    }

    /// Returns the score that a member gets, or `None` if it is left as it is.
    fn score(&self, former: Option<f64>, number: f64) -> Result<Option<f64>, Error> {
        let Some(former) = former else { return Ok((!self.only_old).then_some(number)) };
        if self.only_new {
            return Ok(None);
        }
        let score = if self.increments { former + number } else { number };
        if score.is_nan() {
            return Err(Error::new("ERR resulting score is not a number (NaN)"));
        }
        let is_refused = self.only_greater && score <= former || self.only_less && score >= former;
        Ok((!is_refused).then_some(score))
    }
}

fn add(call: &mut Call<'_>, options: Options) -> Result<(), Error> {
    let key = call.args[1];
    let (options, pairs) = options.parse(&call.args[2..])?;
    let numbers = pairs.chunks_exact(2).map(|pair| double(pair[0])).collect::<Result<Vec<_>, _>>()?;
    let (mut added, mut changed, mut result) = (0, 0, None);
    for (pair, number) in pairs.chunks_exact(2).zip(numbers) {
        let former = call.keys.sorted_set(key)?.and_then(|set| set.score(pair[1]));
        result = options.score(former, number)?;
        let Some(score) = result.filter(|score| former != Some(*score)) else { continue };
        call.keys.change_sorted_set(key)?.insert(pair[1], score);
        match former {
            None => added += 1,
            Some(_) => changed += 1,
        }
    }
    if options.increments {
        reply::score(&mut call.reply, result);
    } else {
        call.reply.integer(if options.counts_changes { added + changed } else { added });
    }
    Ok(())
}
