//! A judge of leases. The rules are on the crate's first page.

use remora_fabric::Nanos;

use crate::membership::{MARGIN, Membership};

/// The number of clients that a judge can watch without another allocation.
const CLIENTS_AT_FIRST: usize = 64;

/// What one judge has seen of other clients' renewals, and when by its own clock. Looking does not
/// allocate.
#[derive(Clone, Debug)]
pub struct LeaseWatch {
    seen: Vec<Renewals>,
    /// What the present look sees. The two vectors take turns.
    seeing: Vec<Renewals>,
    every: Nanos,
    looked: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Renewals {
    client: u32,
    renewals: u64,
    since: Nanos,
}

impl LeaseWatch {
    /// Creates the watch of a judge that looks once every `every` nanoseconds.
    #[must_use]
    pub fn every(every: Nanos) -> LeaseWatch {
        let room = || Vec::with_capacity(CLIENTS_AT_FIRST);
        LeaseWatch { seen: room(), seeing: room(), every, looked: 0 }
    }

    /// Forgets what the judge has seen: every lease begins to run now.
    pub fn begin_anew(&mut self) {
        self.seen.clear();
    }

    /// Looks at the membership. Returns the clients whose leases have expired, each with the number
    /// of its renewals, for [`Membership::suspect_silent`]. `now` must come from a clock that does
    /// not jump.
    pub fn expired(&mut self, membership: &Membership, now: Nanos) -> Vec<(u32, u64)> {
        // A judge that was kept from looking was perhaps stopped together with the clients that it
        // watches. So it begins anew.
        if now.saturating_sub(self.looked) > self.every.saturating_mul(2) {
            self.seen.clear();
        }
        self.looked = now;
        self.seeing.clear();
        let mut expired = Vec::new();
        for (client, renewals, lease) in membership.leases() {
            // Both vectors are in the order of clients.
            let before = self.seen.binary_search_by_key(&client, |seen| seen.client).ok().map(|at| self.seen[at]);
            let since = before.filter(|before| before.renewals == renewals).map_or(now, |before| before.since);
            if now.saturating_sub(since) > lease.saturating_add(lease / MARGIN) {
                expired.push((client, renewals));
            }
            self.seeing.push(Renewals { client, renewals, since });
        }
        std::mem::swap(&mut self.seen, &mut self.seeing);
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_runs_out_by_the_clock_of_who_watches() {
        let mut all = Membership::default();
        let mut watch = LeaseWatch::every(1_000);
        all.join(1, 1, 800, None).unwrap();
        all.join(2, 1, 800, None).unwrap();
        assert!(watch.expired(&all, 5).is_empty());
        all.renew(1).unwrap();
        all.renew(2).unwrap();
        assert!(watch.expired(&all, 9_990).is_empty());
        assert!(watch.expired(&all, 10_000).is_empty(), "at rest before, so that the lease begins now");
        all.renew(2).unwrap();
        assert!(watch.expired(&all, 10_890).is_empty(), "within the margin");
        assert_eq!(watch.expired(&all, 10_891), [(1, 1)]);
        all.renew(1).unwrap();
        assert!(watch.expired(&all, 11_000).is_empty());
        all.rest(2).unwrap();
        assert_eq!(watch.expired(&all, 12_000), [(1, 2)]);
        assert!(watch.expired(&all, 99_000).is_empty(), "the judge itself stood still");
        assert_eq!(watch.expired(&all, 99_901), [(1, 2)]);
        watch.begin_anew();
        assert!(watch.expired(&all, 99_902).is_empty() && watch.expired(&all, 100_802).is_empty());
        assert_eq!(watch.expired(&all, 100_803), [(1, 2)]);
    }
}
