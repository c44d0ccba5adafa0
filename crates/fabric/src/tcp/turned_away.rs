//! The log lines about connections that a server turned away. The first one is logged at once, then
//! at most one line a second, however many a scanner makes.

use std::fmt::Display;
use std::net::SocketAddr;

use crate::ids::Nanos;
use crate::limits::TURNED_AWAY_NS;
use crate::shm::monotonic_ns;

/// What the log has not been told yet.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    /// The time at which the last line was written.
    told_at: Option<Nanos>,
    /// The number of connections since the last line.
    untold: u64,
    /// What happened to the last of these connections.
    last: String,
}

impl TurnedAway {
    /// Records that a connection has been turned away. The peer is unknown if it has gone already.
    pub(crate) fn note(&mut self, peer: Option<SocketAddr>, why: &dyn Display) {
        self.untold += 1;
        self.last = peer.map_or_else(|| why.to_string(), |peer| format!("{peer}: {why}"));
        self.tell(monotonic_ns());
    }

    /// Returns when there is a line to write.
    pub(crate) fn due(&self) -> Option<Nanos> {
        (self.untold > 0).then(|| self.told_at.map_or(0, |told_at| told_at + TURNED_AWAY_NS))
    }

    /// Writes a line if one is due.
    pub(crate) fn tell(&mut self, now: Nanos) {
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        self.told_at = Some(now);
        match std::mem::take(&mut self.untold) {
            1 => tracing::warn!("a connection is turned away: {}", self.last),
            count => tracing::warn!(count, "connections were turned away; the last one: {}", self.last),
        }
        self.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_tells_of_all() {
        const SECOND: Nanos = TURNED_AWAY_NS;
        let mut log = TurnedAway::default();
        assert_eq!(log.due(), None);
        log.note(None, &"garbage");
        assert_eq!((log.due(), log.untold), (None, 0), "the first one is told at once");
        (0..500).for_each(|_| log.note("10.0.0.7:1".parse().ok(), &"garbage"));
        assert_eq!((log.untold, &*log.last), (500, "10.0.0.7:1: garbage"));
        let due = log.due().expect("the others are told later");
        log.tell(due - 1);
        assert_eq!((log.due(), log.untold), (Some(due), 500));
        log.tell(due);
        assert_eq!((log.due(), log.told_at, log.untold), (None, Some(due), 0));
        log.untold = 1;
        assert_eq!(log.due(), Some(due + SECOND));
    }
}
