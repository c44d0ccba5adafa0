//! What goes wrong in a simulated cluster: clients that die, and what a plan has happen.

use super::World;
use crate::sim::faults;

impl World {
    pub(super) fn fault_due(&mut self, index: usize) {
        let Some(happening) = self.faults.due(index) else { return };
        faults::happen(self, happening);
    }

    /// A client's machine dies now: what it has posted may have left, up to some packet.
    pub(in crate::sim) fn kill(&mut self, connection: usize) {
        if self.connections[connection].dead {
            return;
        }
        for node in 0..self.nodes.len() {
            let last = self.connections[connection].floors[node].arrival;
            let ahead = last.saturating_sub(self.now);
            let cut = self.now + if ahead == 0 { 0 } else { self.prng.below(ahead + 2) };
            self.connections[connection].floors[node].cut = cut;
        }
        self.connections[connection].dead = true;
        if let Some(core) = self.connections[connection].core {
            self.stop_core(core);
        }
    }

    /// A core does nothing any more.
    pub(in crate::sim) fn stop_core(&mut self, core: usize) {
        if !std::mem::replace(&mut self.cores[core].stopped, true) {
            self.running_cores -= 1;
        }
    }
}
