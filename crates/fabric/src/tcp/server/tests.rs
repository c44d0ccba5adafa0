//! Tests of a server that need its inside, because from outside they would need an RDMA device.

use super::*;
use crate::error::{FabricError, Fault, Refusal};
use crate::executor::block_on;
use crate::tcp::{Tcp, TcpOptions};
use crate::transport::Fabric;
use crate::{Address, Lane, RegionId, Round};

const REGION: usize = 4096;

fn word(index: u64) -> Address {
    Address { node: NodeId(0), region: RegionId(0), offset: 8 * index }
}

/// A handler that answers with the request.
struct Echo;

impl Handler for Echo {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        reply.extend(request);
    }
}

/// Starts a server that believes a NIC changes its memory. Returns it with the fabric of a client
/// that has no RDMA.
fn exclusive() -> (ServerHandle, Arc<Memory>, Tcp) {
    let memory = Arc::new(Memory::map(&[vec![REGION]]).expect("a test's memory"));
    let mut server = Server::bind("127.0.0.1:0", ServerOptions::default(), memory.clone()).expect("a free port");
    server.threads[0].node.exclusive = true;
    server.answer(Box::new(Echo));
    let (handle, address) = (server.handle(), server.local_addr().expect("a bound port").to_string());
    std::thread::spawn(move || server.run());
    (handle, memory, Tcp::new(vec![address], TcpOptions::default()))
}

/// A NIC's atomics are not atomic to a CPU's, so a client that connected over TCP by mistake would
/// lose locks.
#[test]
fn a_node_that_is_reached_by_rdma_takes_no_changes_over_tcp() {
    let (server, memory, tcp) = exclusive();
    let region = memory.region(NodeId(0), RegionId(0)).expect("it has been mapped");
    let words = || region.words().iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    region.words()[1].store(7, Ordering::Relaxed);
    let before = words();
    let refused = Err(FabricError { node: NodeId(0), fault: Fault::Refused(Refusal::NeedsRdma) });
    let changes: [fn(&mut Round<'_>); 4] = [
        |round| round.write_words(word(1), &[1, 2]),
        |round| {
            round.compare_swap(word(1), 7, 8);
        },
        |round| {
            round.fetch_add(word(1), 1);
        },
        |round| {
            round.read(word(1), 8);
            round.write_words(word(2), &[3]);
        },
    ];
    block_on(&tcp, ClientId(1), async |lane: &Lane| {
        for change in changes {
            let mut round = lane.round();
            change(&mut round);
            assert_eq!(lane.execute(round).await.map(drop), refused);
            assert_eq!(words(), before);
            // The connection stays open: looking at a node changes nothing.
            let mut round = lane.round();
            let read = round.read(word(1), 8);
            round.flush(NodeId(0));
            let done = lane.execute(round).await.expect("a READ");
            assert_eq!(done.words(read), [7]);
        }
        let mut round = lane.round();
        let call = round.call(NodeId(0), &[5], None, 1);
        assert_eq!(lane.execute(round).await.expect("a call").reply(call), [5]);
    })
    .expect("a server");
    assert!(tcp.status(NodeId(0)).is_ok(), "it can be asked how it is");
    tcp.revoke(ClientId(1)).expect("recovery goes over TCP");
    server.stop();
}
