//! Connections of Redis' protocol: what a [`net::Handler`](crate::net::Handler) does for them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use remora::Session;

use crate::connection::Connection;
use crate::net::{Handler, Next, Origin};
use crate::server::Server;

/// The handler of a thread.
#[derive(Debug)]
pub struct Front {
    server: Arc<Server>,
    /// The state of the random numbers of the thread's commands.
    random: Cell<u64>,
}

impl Front {
    /// Makes the handler of a thread. `seed` begins its random numbers.
    pub fn new(server: Arc<Server>, seed: u64) -> Front {
        Front { server, random: Cell::new(seed | 1) }
    }
}

impl Handler for Front {
    type Connection = Connection;

    fn open(&self, origin: &Origin) -> Result<Connection, Vec<u8>> {
        Ok(Connection::new(origin.id, &self.server))
    }

    async fn serve(
        &self,
        session: &mut Session,
        connection: &mut Connection,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> Next {
        connection.serve(&self.server, session, &self.random, input, output).await
    }

    fn is_overdue(&self, _connection: &Connection, _quiet: Duration) -> bool {
        false
    }

    fn close(&self, _connection: Connection) {}
}
