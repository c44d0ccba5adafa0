//! Commands of sorted sets.
//!
//! | module | what |
//! | --- | --- |
//! | `add` | `ZADD` and `ZINCRBY` |
//! | `range` | ranges of places, scores and bytes: what reads, counts, stores and removes them |
//! | `combine` | unions, intersections and differences |
//! | `pop` | what removes the lowest or the highest members |
//! | `reply` | members in a reply, with their scores or without |

mod add;
mod combine;
mod pop;
mod range;
mod reply;

use remora_resp::number;

use crate::call::Call;
use crate::command::{Command, Keys, Run};
use crate::commands::{random, scan};
use crate::error::Error;
use crate::object::SortedSet;

use add::{zadd, zincrby};
use combine::{zdiff, zdiffstore, zinter, zintercard, zinterstore, zunion, zunionstore};
use pop::{zmpop, zpopmax, zpopmin};
use range::{
    zcount, zlexcount, zrange, zrangebylex, zrangebyscore, zrangestore, zremrangebylex, zremrangebyrank,
    zremrangebyscore, zrevrange, zrevrangebylex, zrevrangebyscore,
};
use reply::Form;

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "zadd",
        arity: -4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zadd),
    },
    Command {
        name: "zcard",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zcard),
    },
    Command {
        name: "zcount",
        arity: 4,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zcount),
    },
    Command {
        name: "zdiff",
        arity: -3,
        flags: &["readonly", "movablekeys"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(zdiff),
    },
    Command {
        name: "zdiffstore",
        arity: -4,
        flags: &["write", "denyoom", "movablekeys"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Counted { count: 2, has_destination: true },
        run: Run::Keys(zdiffstore),
    },
    Command {
        name: "zincrby",
        arity: 4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zincrby),
    },
    Command {
        name: "zinter",
        arity: -3,
        flags: &["readonly", "movablekeys"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(zinter),
    },
    Command {
        name: "zintercard",
        arity: -3,
        flags: &["readonly", "movablekeys"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(zintercard),
    },
    Command {
        name: "zinterstore",
        arity: -4,
        flags: &["write", "denyoom", "movablekeys"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Counted { count: 2, has_destination: true },
        run: Run::Keys(zinterstore),
    },
    Command {
        name: "zlexcount",
        arity: 4,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zlexcount),
    },
    Command {
        name: "zmpop",
        arity: -4,
        flags: &["write", "movablekeys"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(zmpop),
    },
    Command {
        name: "zmscore",
        arity: -3,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zmscore),
    },
    Command {
        name: "zpopmax",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["write", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zpopmax),
    },
    Command {
        name: "zpopmin",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["write", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zpopmin),
    },
    Command {
        name: "zrandmember",
        arity: -2,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrandmember),
    },
    Command {
        name: "zrange",
        arity: -4,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrange),
    },
    Command {
        name: "zrangebylex",
        arity: -4,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrangebylex),
    },
    Command {
        name: "zrangebyscore",
        arity: -4,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrangebyscore),
    },
    Command {
        name: "zrangestore",
        arity: -5,
        flags: &["write", "denyoom"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(zrangestore),
    },
    Command {
        name: "zrank",
        arity: -3,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrank),
    },
    Command {
        name: "zrem",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["write", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrem),
    },
    Command {
        name: "zremrangebylex",
        arity: 4,
        flags: &["write"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zremrangebylex),
    },
    Command {
        name: "zremrangebyrank",
        arity: 4,
        flags: &["write"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zremrangebyrank),
    },
    Command {
        name: "zremrangebyscore",
        arity: 4,
        flags: &["write"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zremrangebyscore),
    },
    Command {
        name: "zrevrange",
        arity: -4,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrevrange),
    },
    Command {
        name: "zrevrangebylex",
        arity: -4,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrevrangebylex),
    },
    Command {
        name: "zrevrangebyscore",
        arity: -4,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrevrangebyscore),
    },
    Command {
        name: "zrevrank",
        arity: -3,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zrevrank),
    },
    Command {
        name: "zscan",
        arity: -3,
        flags: &["readonly"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zscan),
    },
    Command {
        name: "zscore",
        arity: 3,
        flags: &["readonly", "fast"],
        categories: &["read", "sortedset", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(zscore),
    },
    Command {
        name: "zunion",
        arity: -3,
        flags: &["readonly", "movablekeys"],
        categories: &["read", "sortedset", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(zunion),
    },
    Command {
        name: "zunionstore",
        arity: -4,
        flags: &["write", "denyoom", "movablekeys"],
        categories: &["write", "sortedset", "slow"],
        keys: Keys::Counted { count: 2, has_destination: true },
        run: Run::Keys(zunionstore),
    },
];

fn zcard(call: &mut Call<'_>) -> Result<(), Error> {
    let length = call.keys.sorted_set(call.args[1])?.map_or(0, SortedSet::len);
    call.reply.integer(length as i64);
    Ok(())
}

fn zscore(call: &mut Call<'_>) -> Result<(), Error> {
    let score = call.keys.sorted_set(call.args[1])?.and_then(|set| set.score(call.args[2]));
    reply::score(&mut call.reply, score);
    Ok(())
}

fn zmscore(call: &mut Call<'_>) -> Result<(), Error> {
    let set = call.keys.sorted_set(call.args[1])?;
    call.reply.array(call.args.len() - 2);
    for member in &call.args[2..] {
        reply::score(&mut call.reply, set.and_then(|set| set.score(member)));
    }
    Ok(())
}

fn zrem(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let mut removed = 0;
    for member in &call.args[2..] {
        if call.keys.sorted_set(key)?.is_some_and(|set| set.score(member).is_some()) {
            call.keys.change_sorted_set(key)?.remove(member);
            removed += 1;
        }
    }
    call.reply.integer(removed);
    Ok(())
}

fn zrank(call: &mut Call<'_>) -> Result<(), Error> {
    rank(call, "zrank", |_, place| place)
}

fn zrevrank(call: &mut Call<'_>) -> Result<(), Error> {
    // The trees of a spread set may be of two states until the transaction is validated.
    rank(call, "zrevrank", |length, place| length.saturating_sub(place + 1))
}

/// Answers the place of a member, which `of` makes of the number of members and of the place from
/// the lowest on.
fn rank(call: &mut Call<'_>, name: &str, of: impl Fn(usize, usize) -> usize) -> Result<(), Error> {
    let with_score = match call.args.len() {
        3 => false,
        4 if call.is(3, "withscore") => true,
        4 => return Err(Error::SYNTAX),
        _ => return Err(Error::arity(name)),
    };
    let set = call.keys.sorted_set(call.args[1])?;
    let found = set.and_then(|set| set.rank(call.args[2]).map(|place| (set, place)));
    match found {
        None if with_score => call.reply.null_array(),
        None => call.reply.null(),
        Some((set, place)) => {
            if with_score {
                call.reply.array(2);
            }
            call.reply.integer(of(set.len(), place) as i64);
            if with_score {
                reply::score(&mut call.reply, set.at(place).map(|(_, score)| score));
            }
        }
    }
    Ok(())
}

fn zrandmember(call: &mut Call<'_>) -> Result<(), Error> {
    let count = call.args.get(2).map(|count| random::count(count)).transpose()?;
    let with_scores = match call.args.len() {
        ..=3 => false,
        4 if call.is(3, "withscores") => true,
        _ => return Err(Error::SYNTAX),
    };
    if with_scores && count.is_some_and(|count| count.unsigned_abs() > i64::MAX as u64 / 2) {
        return Err(Error::OUT_OF_RANGE);
    }
    let set = call.keys.sorted_set(call.args[1])?;
    match (count, set) {
        (None, None) => call.reply.null(),
        (Some(_), None) => call.reply.array(0),
        (None, Some(set)) => {
            let drawn = set.at(call.context.random_below(set.len()));
            drawn.into_iter().for_each(|(member, _)| call.reply.bulk(member));
        }
        (Some(count), Some(set)) => {
            let score_bytes = if with_scores { SCORE_BYTES } else { 0 };
            let bytes = |place| set.at(place).map_or(0, |(member, _)| member.len() + score_bytes);
            let drawn = random::draw(call.context, set.len(), count, bytes)?;
            let members = drawn.into_iter().map(|place| set.at(place).expect("a drawn place is below the length"));
            reply::members(&mut call.reply, Form::of(with_scores, call.version), members);
        }
    }
    Ok(())
}

/// About how long a score is in a reply.
const SCORE_BYTES: usize = 8;

fn zscan(call: &mut Call<'_>) -> Result<(), Error> {
    let cursor = scan::cursor(call.args[2])?;
    let Some(set) = call.keys.sorted_set(call.args[1])? else {
        scan::begin(&mut call.reply, None, 0);
        return Ok(());
    };
    let options = scan::Options::parse(&call.args[3..])?;
    let (mut taken, next) = set.scan(cursor, options.places());
    taken.retain(|(member, _)| options.takes(member));
    scan::begin(&mut call.reply, next, 2 * taken.len());
    for (member, score) in taken {
        call.reply.bulk(member);
        call.reply.bulk(number::Double::new(score));
    }
    Ok(())
}
