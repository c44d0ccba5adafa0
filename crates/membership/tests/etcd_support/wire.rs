//! A network connection between etcd and one of its clients, which a test can cut.
#![allow(unreachable_pub, reason = "it is for the tests beside it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A wire to a server. When it is cut, requests arrive and answers do not.
pub struct Wire {
    address: String,
    cut: Arc<AtomicBool>,
}

impl Wire {
    pub fn to(server: String) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cut = Arc::<AtomicBool>::default();
        let wire = Wire { address, cut: cut.clone() };
        // This thread lives as long as the tests.
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&server) else { continue };
                let (to_near, to_far, from_cut) = (near.try_clone().unwrap(), far.try_clone().unwrap(), cut.clone());
                thread::spawn(move || copy(near, to_far, || false));
                thread::spawn(move || copy(far, to_near, || from_cut.load(Ordering::SeqCst)));
            }
        });
        wire
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Cuts the wire: from now on no answer gets through, and no new connection is made.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

/// Passes on what arrives. What arrives while the wire is cut is lost, and the connection ends when
/// the wire is whole again.
fn copy(mut from: TcpStream, mut to: TcpStream, is_cut: impl Fn() -> bool) {
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    from.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    let (mut buffer, mut has_lost) = ([0; 16 << 10], false);
    while !has_lost || is_cut() {
        match from.read(&mut buffer) {
            Ok(1..) if is_cut() => has_lost = true,
            Ok(count @ 1..) if to.write_all(&buffer[..count]).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both); // it may be gone
    let _ = to.shutdown(Shutdown::Both);
}
