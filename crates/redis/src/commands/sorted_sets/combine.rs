//! Unions, intersections and differences of sorted sets and of sets. A member of a set has the
//! score 1.

use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::call::{Call, double, integer};
use crate::commands::sorted_sets::reply::{self, Form};
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::object::{Set, SortedSet, Value};

/// What is made of several sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// What a command does with the members that it has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Answer,
    Count,
    Store,
}

/// What becomes of the scores of a member of several sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Aggregate {
    Sum,
    Least,
    Greatest,
}

impl Aggregate {
    fn of(self, score: f64, other: f64) -> f64 {
        match self {
            Aggregate::Sum => or_zero(score + other),
            Aggregate::Least if other < score => other,
            Aggregate::Greatest if other > score => other,
            Aggregate::Least | Aggregate::Greatest => score,
        }
    }
}

/// Returns 0 for what is no number: the sum of both infinities, or 0 times infinity.
fn or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// A key whose members are combined.
#[derive(Clone, Copy, Debug)]
struct Source<'k> {
    members: Members<'k>,
    /// What its scores are multiplied by.
    weight: f64,
}

/// The members of a source.
#[derive(Clone, Copy, Debug)]
enum Members<'k> {
    None,
    Set(&'k Set),
    SortedSet(&'k SortedSet),
}

impl<'k> Members<'k> {
    fn find(keys: &'k Keyspace, key: &[u8]) -> Result<Members<'k>, Error> {
        match keys.get(key).map(|object| &object.value) {
            None => Ok(Members::None),
            Some(Value::Set(set)) => Ok(Members::Set(set)),
            Some(Value::SortedSet(set)) => Ok(Members::SortedSet(set)),
            Some(_) => Err(Error::WRONG_TYPE),
        }
    }

    fn len(self) -> usize {
        match self {
            Members::None => 0,
            Members::Set(set) => set.len(),
            Members::SortedSet(set) => set.len(),
        }
    }

    fn iter(self) -> Box<dyn Iterator<Item = (&'k [u8], f64)> + 'k> {
        match self {
            Members::None => Box::new(std::iter::empty()),
            Members::Set(set) => Box::new(set.iter().map(|member| (member, 1.0))),
            Members::SortedSet(set) => Box::new(set.iter()),
        }
    }

    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            Members::None => None,
            Members::Set(set) => set.contains(member).then_some(1.0),
            Members::SortedSet(set) => set.score(member),
        }
    }
}

/// A call that combines sets.
#[derive(Debug)]
struct Request<'k> {
    sources: Vec<Source<'k>>,
    aggregate: Aggregate,
    with_scores: bool,
    /// How many members are counted. 0 is all.
    limit: usize,
}

impl<'k> Request<'k> {
    /// Reads the number of keys, the keys, and the options behind them. `name` is the command's.
    fn parse(
        keys: &'k Keyspace,
        args: &[&[u8]],
        operation: Operation,
        purpose: Purpose,
        name: &str,
    ) -> Result<Request<'k>, Error> {
        const NEGATIVE: Error = Error::new("ERR LIMIT can't be negative");
        let number = integer(args[0])?;
        if number < 1 {
            return Err(Error::of(format!("ERR at least 1 input key is needed for '{name}' command")));
        }
        let split = usize::try_from(number).ok().and_then(|number| args[1..].split_at_checked(number));
        let (names, mut rest) = split.ok_or(Error::SYNTAX)?;
        let sources = names.iter().map(|name| Members::find(keys, name).map(|members| Source { members, weight: 1.0 }));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let mut request = Request { sources, aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        let has_scores = operation != Operation::Difference && purpose != Purpose::Count;
        while let [option, behind @ ..] = rest {
            rest = match (option.to_ascii_lowercase().as_slice(), behind) {
                (b"weights", _) if has_scores && behind.len() >= names.len() => {
                    let (weights, behind) = behind.split_at(names.len());
                    for (source, weight) in request.sources.iter_mut().zip(weights) {
                        source.weight = double(weight).map_err(|_| Error::new("ERR weight value is not a float"))?;
                    }
                    behind
                }
                (b"aggregate", [aggregate, behind @ ..]) if has_scores => {
                    request.aggregate = match aggregate.to_ascii_lowercase().as_slice() {
                        b"sum" => Aggregate::Sum,
                        b"min" => Aggregate::Least,
                        b"max" => Aggregate::Greatest,
                        _ => return Err(Error::SYNTAX),
                    };
                    behind
                }
                (b"withscores", _) if purpose == Purpose::Answer => {
                    request.with_scores = true;
                    behind
                }
                (b"limit", [limit, behind @ ..]) if purpose == Purpose::Count => {
                    let limit = integer(limit).ok().and_then(|limit| usize::try_from(limit).ok());
                    request.limit = limit.ok_or(NEGATIVE)?;
                    behind
                }
                _ => return Err(Error::SYNTAX),
            };
        }
        Ok(request)
    }

    /// Returns the members, in no order.
    fn combine(mut self, operation: Operation) -> Vec<(&'k [u8], f64)> {
        if operation == Operation::Difference {
            let others = &self.sources[1..];
            let members = self.sources[0].members.iter();
            return members
                .filter(|(member, _)| others.iter().all(|other| other.members.score(member).is_none()))
                .collect();
        }
        // The order decides how sums are rounded.
        self.sources.sort_by_key(|source| source.members.len());
        if operation == Operation::Union { self.union() } else { self.intersection() }
    }

    fn union(&self) -> Vec<(&'k [u8], f64)> {
        let mut union: IndexMap<&[u8], f64> = IndexMap::new();
        for source in &self.sources {
            for (member, score) in source.members.iter() {
                let score = or_zero(source.weight * score);
                match union.entry(member) {
                    Entry::Vacant(entry) => _ = entry.insert(score),
                    Entry::Occupied(mut entry) => *entry.get_mut() = self.aggregate.of(*entry.get(), score),
                }
            }
        }
        union.into_iter().collect()
    }

    fn intersection(&self) -> Vec<(&'k [u8], f64)> {
        let (smallest, others) = (self.sources[0], &self.sources[1..]);
        let aggregate = |(member, score): (&'k [u8], f64)| {
            let mut scores = others.iter().map(|other| Some(other.weight * other.members.score(member)?));
            let first = or_zero(smallest.weight * score);
            scores.try_fold(first, |sum, score| Some(self.aggregate.of(sum, score?))).map(|score| (member, score))
        };
        smallest.members.iter().filter_map(aggregate).collect()
    }
}

pub(super) fn zunion(call: &mut Call<'_>) -> Result<(), Error> {
    answer(call, Operation::Union, "zunion")
}

pub(super) fn zinter(call: &mut Call<'_>) -> Result<(), Error> {
    answer(call, Operation::Intersection, "zinter")
}

pub(super) fn zdiff(call: &mut Call<'_>) -> Result<(), Error> {
    answer(call, Operation::Difference, "zdiff")
}

pub(super) fn zunionstore(call: &mut Call<'_>) -> Result<(), Error> {
    store(call, Operation::Union, "zunionstore")
}

pub(super) fn zinterstore(call: &mut Call<'_>) -> Result<(), Error> {
    store(call, Operation::Intersection, "zinterstore")
}

pub(super) fn zdiffstore(call: &mut Call<'_>) -> Result<(), Error> {
    store(call, Operation::Difference, "zdiffstore")
}

pub(super) fn zintercard(call: &mut Call<'_>) -> Result<(), Error> {
    let (operation, purpose) = (Operation::Intersection, Purpose::Count);
    let request = Request::parse(call.keys, &call.args[1..], operation, purpose, "zintercard")?;
    let limit = request.limit;
    let count = request.combine(operation).len();
    call.reply.integer(if limit == 0 { count } else { count.min(limit) } as i64);
    Ok(())
}

/// Answers the members, the lowest first.
fn answer(call: &mut Call<'_>, operation: Operation, name: &str) -> Result<(), Error> {
    let request = Request::parse(call.keys, &call.args[1..], operation, Purpose::Answer, name)?;
    let form = Form::of(request.with_scores, call.version);
    let set = sorted(request.combine(operation));
    reply::members(&mut call.reply, form, set.iter());
    Ok(())
}

/// Stores the members under the first key, and answers their number.
fn store(call: &mut Call<'_>, operation: Operation, name: &str) -> Result<(), Error> {
    let request = Request::parse(call.keys, &call.args[2..], operation, Purpose::Store, name)?;
    let set = sorted(request.combine(operation));
    call.reply.integer(set.len() as i64);
    call.keys.store(call.args[1], Value::SortedSet(set));
    Ok(())
}

fn sorted(members: Vec<(&[u8], f64)>) -> SortedSet {
    members.into_iter().map(|(member, score)| (member.to_vec(), score)).collect()
}
