//! A connection as the commands about it see it.

use std::cell::Cell;
use std::sync::Arc;

use remora_resp::{Parser, Version};

use super::Server;
use super::clients::{Entry, Names};
use super::counters::Counters;
use crate::net::Origin;

/// What the connections of one thread share.
#[derive(Debug)]
pub struct Local {
    /// The state of the random numbers of commands.
    pub(crate) random: Cell<u64>,
    pub(crate) counters: Arc<Counters>,
}

impl Local {
    /// Makes what the connections of a thread share. `seed` begins the random numbers.
    pub fn new(server: &Server, seed: u64) -> Local {
        Local { random: Cell::new(seed | 1), counters: server.new_counters() }
    }
}

/// The client at the other end of a connection, and how it wants to be served.
#[derive(Debug)]
pub(crate) struct Peer {
    /// What others see of the connection.
    pub(crate) client: Entry,
    pub(crate) parser: Parser,
    pub(crate) state: State,
}

/// What commands change of a connection, and an `EXEC` that fails does not.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The database that is selected.
    pub(crate) database: u8,
    /// The version of the protocol.
    pub(crate) version: Version,
    /// The name of the connection, and its library, if the client has told them.
    pub(crate) names: Option<Arc<Names>>,
    /// Whether an `EXEC` in which a command fails applies nothing.
    pub(crate) rolls_back: bool,
    /// Whether the client has authenticated, or does not have to.
    pub(crate) is_authenticated: bool,
    /// Which replies are sent.
    pub(crate) replies: Replies,
}

/// Which replies a client wants: `CLIENT REPLY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// All but the next one.
    Skip,
}

impl Peer {
    /// Begins a connection.
    pub(crate) fn new(server: &Server, origin: &Origin) -> Peer {
        let mut parser = Parser::new();
        let is_authenticated = !server.needs_password();
        parser.set_authenticated(is_authenticated);
        let state = State { is_authenticated, rolls_back: server.rolls_back(), ..State::default() };
        Peer { client: server.clients.enter(origin, is_authenticated), parser, state }
    }

    /// Says whether the client has authenticated, or does not have to.
    pub(crate) fn set_authenticated(&mut self, is_authenticated: bool) {
        self.state.is_authenticated = is_authenticated;
        self.parser.set_authenticated(is_authenticated);
        self.client.set_authenticated(is_authenticated);
    }

    /// Changes the names of the connection.
    pub(crate) fn set_names(&mut self, change: impl FnOnce(&mut Names)) {
        let names = self.state.names.get_or_insert_default();
        change(Arc::make_mut(names));
        self.client.set_names(self.state.names.clone());
    }
}
