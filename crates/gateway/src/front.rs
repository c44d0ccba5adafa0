//! Connections of Redis' protocol: what a [`net::Handler`](crate::net::Handler) does for them.

use std::sync::Arc;
use std::time::Duration;

use remora::Session;

use crate::connection::Connection;
use crate::net::{Handler, Next, Origin};
use crate::server::{Local, Server};

/// The handler of a thread.
#[derive(Debug)]
pub struct Front {
    server: Arc<Server>,
    local: Local,
}

impl Front {
    /// Makes the handler of a thread. `seed` begins its random numbers.
    pub fn new(server: Arc<Server>, seed: u64) -> Front {
        let local = Local::new(&server, seed);
        Front { server, local }
    }
}

impl Handler for Front {
    type Connection = Connection;

    fn open(&self, origin: &Origin) -> Result<Connection, Vec<u8>> {
        self.server.admit(origin)?;
        Ok(Connection::open(origin, &self.server))
    }

    fn begin(&self, session: &mut Session) {
        if let Some(recorder) = self.server.recorder() {
            recorder.observe(session);
        }
    }

    async fn serve(
        &self,
        session: &mut Session,
        connection: &mut Connection,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> Next {
        connection.serve(&self.server, session, &self.local, input, output).await
    }

    fn is_overdue(&self, connection: &Connection, quiet: Duration) -> bool {
        self.server.is_overdue(connection.client(), quiet)
    }

    fn close(&self, _connection: Connection) {}
}
