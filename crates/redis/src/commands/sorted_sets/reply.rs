//! Members in a reply, with their scores or without.

use remora_resp::{ReplyWriter, Version};

/// What is answered of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Only the members.
    Members,
    /// Each member, then its score.
    Flat,
    /// An array of each member and its score.
    Nested,
}

impl Form {
    /// Returns the form of most commands, which depends on the version.
    pub(super) fn of(with_scores: bool, version: Version) -> Form {
        match (with_scores, version) {
            (false, _) => Form::Members,
            (true, Version::Resp2) => Form::Flat,
            (true, Version::Resp3) => Form::Nested,
        }
    }
}

/// Answers members.
pub(super) fn members<'m>(
    reply: &mut ReplyWriter<'_>,
    form: Form,
    members: impl ExactSizeIterator<Item = (&'m [u8], f64)>,
) {
    let count = members.len();
    reply.array(if form == Form::Flat { 2 * count } else { count });
    for (member, score) in members {
        if form == Form::Nested {
            reply.array(2);
        }
        reply.bulk(member);
        if form != Form::Members {
            reply.double(score);
        }
    }
}

/// Answers a score, or null.
pub(super) fn score(reply: &mut ReplyWriter<'_>, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}
