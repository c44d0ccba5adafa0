//! Queue pairs. This file has all calls of libibverbs that post, poll and connect.
//!
//! A work request names registered memory by its place in the queue pair's own list, and is checked
//! against that memory's bounds. The queue pair keeps the memory, and is destroyed before it. So
//! the NIC writes only into memory that the program reaches as atomic words.

use std::io;
use std::iter::repeat_n;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::device::{Domain, Port, refused};
use crate::error::SystemError;
use crate::rdma::VerbsError;
use crate::region::Region;

/// Work requests that are posted in one call.
pub(super) const LIST_MAX: usize = 32;
/// Completions that are polled in one call.
pub(super) const POLL_MAX: usize = 16;

/// What the two ends may do with registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// The NIC of this end writes what this end has asked for.
    Local,
    /// The other end may write.
    RemoteWrite,
    /// The other end may read, write and use atomics.
    Remote,
}

/// A region that is registered, so that the NIC may use it.
pub(super) struct Registered {
    raw: NonNull<sys::ibv_mr>,
    region: Arc<Region>,
    _domain: Arc<Domain>,
}

// SAFETY: a registration is never changed, and the library locks what it shares.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(domain: &Arc<Domain>, region: Arc<Region>, access: Access) -> Result<Registered, VerbsError> {
        use sys::ibv_access_flags as flags;
        let remote_write = flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_WRITE;
        let access = match access {
            Access::Local => flags::IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteWrite => remote_write,
            Access::Remote if !domain.context.atomics => remote_write | flags::IBV_ACCESS_REMOTE_READ,
            Access::Remote => remote_write | flags::IBV_ACCESS_REMOTE_READ | flags::IBV_ACCESS_REMOTE_ATOMIC,
        };
        let (start, bytes) = (region.words().as_ptr().cast_mut(), region.bytes());
        // SAFETY: the range is the region's, which lives until after the registration. The program
        // reaches it as atomic words only, so a NIC may change it at any time.
        let raw = unsafe { sys::ibv_reg_mr(domain.raw(), start.cast(), bytes as usize, access.0 as _) };
        let cause = || io::Error::last_os_error().into();
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::Memory { bytes, cause: cause() })?;
        Ok(Registered { raw, region, _domain: domain.clone() })
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the address of the memory, which the other end needs.
    pub(super) fn address(&self) -> u64 {
        self.region.words().as_ptr() as u64
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the registration exists as long as `self`.
        unsafe { self.raw.as_ref() }.rkey
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the registration exists as long as `self`.
        unsafe { self.raw.as_ref() }.lkey
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: queue pairs that use the registration keep it alive, so none is left. The memory
        // is dropped after it.
        if unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) } != 0 {
            tracing::error!("memory could not be taken back from an RDMA device");
        }
    }
}

/// What a work request does at the other end's address, with the other end's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Read,
    Write,
    /// A WRITE of which the other end is told, with a word.
    Message(u32),
    /// A datagram to the other end at this place of the queue pair's list.
    Datagram(u32),
    CompareSwap {
        expected: u64,
        new: u64,
    },
    FetchAdd(u64),
}

/// A work request: whole words of registered memory of this end, and their destination or source.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRequest {
    pub(super) operation: Operation,
    pub(super) address: u64,
    pub(super) key: u32,
    /// The index of the memory in the queue pair's list.
    pub(super) memory: u32,
    pub(super) at: usize,
    pub(super) words: usize,
    /// Whether the NIC reports the completion.
    pub(super) signaled: bool,
}

/// Room for one more message of the other end: whole words of registered memory of this end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    /// The index of the memory in the queue pair's list.
    pub(super) memory: u32,
    pub(super) at: usize,
    pub(super) words: usize,
}

impl Receive {
    /// A receive for a WRITE with immediate, which says itself where its words go.
    pub(super) const NO_WORDS: Receive = Receive { memory: 0, at: 0, words: 0 };
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Completion {
    /// The oldest signalled work request has completed, and so have all before it.
    Sent,
    /// A message of the other end has arrived, with its word.
    Message(u32),
    /// A datagram has arrived, with the route that the NIC puts in front of it: its place in
    /// memory, and the queue pair that sent it.
    Datagram { memory: u32, at: usize, bytes: u32, from: u32 },
}

/// The purpose of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A reliable connection.
    Connection,
    /// Unreliable datagrams, from every sender that knows the key.
    Datagrams { key: u32 },
}

/// Another end, to which datagrams can be sent.
struct Peer {
    handle: NonNull<sys::ibv_ah>,
    number: u32,
    key: u32,
    _domain: Arc<Domain>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: only this value has the handle, and no work request names it any more. The caller
        // that removes the peer sees to that, or the queue pair is destroyed.
        if unsafe { sys::ibv_destroy_ah(self.handle.as_ptr()) } != 0 {
            tracing::error!("an address handle could not be destroyed");
        }
    }
}

/// The description of a queue pair that its two ends send each other to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) number: u32,
    /// Sequence number of the first packet that this end sends.
    pub(super) sequence: u32,
    pub(super) lid: u16,
    pub(super) mtu: u32,
    pub(super) gid: [u8; 16],
    pub(super) global: bool,
    /// READs and atomics that this end serves at a time.
    pub(super) reads_in: u8,
    /// Whether this end's device has 64-bit atomics.
    pub(super) atomics: bool,
}

/// A queue pair, with a completion queue and a channel of its own.
pub(super) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    completions: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    domain: Arc<Domain>,
    memories: Vec<Registered>,
    peers: Vec<Option<Peer>>,
    kind: Kind,
    sequence: u32,
    inline_max: usize,
    send_max: usize,
    /// The channel has been told to wake.
    armed: bool,
    /// A completion was seen since, so the channel may have woken.
    seen: bool,
    polled: [Completion; POLL_MAX],
    polled_from: usize,
    polled_to: usize,
}

// SAFETY: no part of a queue pair is tied to a thread, and a caller that posts or polls has
// exclusive access.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair. `sends` work requests of this end and `messages` messages of the other
    /// end may be under way. A queue pair for datagrams is ready to send. A connection must still
    /// be connected, but receives messages already.
    pub(super) fn new(
        domain: &Arc<Domain>,
        kind: Kind,
        sends: u32,
        messages: u32,
        inline_bytes: u32,
        sequence: u32,
    ) -> Result<QueuePair, VerbsError> {
        let context = &domain.context;
        let sends = sends.min(context.work_requests_max);
        // SAFETY: the context is open. Each object that is made is kept, and all are destroyed in
        // the order that they need.
        unsafe {
            let channel = sys::ibv_create_comp_channel(context.raw());
            let channel = NonNull::new(channel).ok_or_else(|| refused("make a completion channel"))?;
            let descriptor = BorrowedFd::borrow_raw(channel.as_ref().fd);
            let quiet = rustix::io::ioctl_fionbio(descriptor, true);
            let depth = (sends + messages) as i32;
            let completions = sys::ibv_create_cq(context.raw(), depth, ptr::null_mut(), channel.as_ptr(), 0);
            let Some(completions) = NonNull::new(completions).filter(|_| quiet.is_ok()) else {
                let error = refused("make a completion queue");
                sys::ibv_destroy_comp_channel(channel.as_ptr());
                return Err(error);
            };
            // All zeros are valid: the fields are numbers and null pointers.
            let mut initial: sys::ibv_qp_init_attr = zeroed();
            initial.send_cq = completions.as_ptr();
            initial.recv_cq = completions.as_ptr();
            initial.qp_type = match kind {
                Kind::Connection => sys::ibv_qp_type::IBV_QPT_RC,
                Kind::Datagrams { .. } => sys::ibv_qp_type::IBV_QPT_UD,
            };
            initial.cap.max_send_wr = sends;
            initial.cap.max_recv_wr = messages;
            initial.cap.max_send_sge = 1;
            initial.cap.max_recv_sge = 1;
            initial.cap.max_inline_data = inline_bytes;
            let mut raw = sys::ibv_create_qp(domain.raw(), &mut initial);
            if raw.is_null() {
                // Devices differ in how many bytes they accept inline.
                initial.cap.max_inline_data = 0;
                raw = sys::ibv_create_qp(domain.raw(), &mut initial);
            }
            let Some(raw) = NonNull::new(raw) else {
                let error = refused("make a queue pair");
                sys::ibv_destroy_cq(completions.as_ptr());
                sys::ibv_destroy_comp_channel(channel.as_ptr());
                return Err(error);
            };
            let (inline_max, send_max) = (initial.cap.max_inline_data as usize, sends as usize);
            let mut queue = QueuePair {
                raw,
                completions,
                channel,
                domain: domain.clone(),
                memories: Vec::new(),
                peers: Vec::new(),
                kind,
                sequence,
                inline_max,
                send_max,
                armed: false,
                seen: false,
                polled: [Completion::Sent; POLL_MAX],
                polled_from: 0,
                polled_to: 0,
            };
            queue.initialize()?;
            match kind {
                Kind::Connection => queue.receive(repeat_n(Receive::NO_WORDS, messages as usize))?,
                Kind::Datagrams { .. } => queue.begin()?,
            }
            Ok(queue)
        }
    }

    /// Gives the queue pair memory for its work requests. Returns the index of that memory.
    pub(super) fn add_memory(&mut self, memory: Registered) -> u32 {
        self.memories.push(memory);
        self.memories.len() as u32 - 1
    }

    pub(super) fn memory(&self, place: u32) -> Option<&Registered> {
        self.memories.get(place as usize)
    }

    /// Returns the number of work requests that may be under way.
    pub(super) fn send_max(&self) -> usize {
        self.send_max
    }

    /// Returns the bytes that a work request can carry inline.
    pub(super) fn inline_max(&self) -> usize {
        self.inline_max
    }

    pub(super) fn place(&self) -> Place {
        let Port { lid, mtu, global, gid, .. } = self.domain.context.port;
        // SAFETY: the queue pair exists as long as `self`.
        let number = unsafe { self.raw.as_ref() }.qp_num;
        let (reads_in, atomics) = (self.domain.context.reads_in, self.domain.context.atomics);
        Place { number, sequence: self.sequence, lid, mtu, gid, global, reads_in, atomics }
    }

    fn modify(&mut self, mut to: sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> Result<(), VerbsError> {
        // SAFETY: the queue pair exists. The attributes are a local variable, and all fields of the
        // mask are set.
        match unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &mut to, mask.0 as _) } {
            0 => Ok(()),
            errno => {
                Err(VerbsError::System { what: "change the state of a queue pair", cause: SystemError::Number(errno) })
            }
        }
    }

    fn initialize(&mut self) -> Result<(), VerbsError> {
        use sys::{ibv_access_flags as access, ibv_qp_attr_mask as mask};
        // SAFETY: all zeros are valid: the fields are numbers.
        let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
        to.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        to.port_num = self.domain.context.port.number;
        let mut allowed = access::IBV_ACCESS_REMOTE_WRITE | access::IBV_ACCESS_REMOTE_READ;
        if self.domain.context.atomics {
            allowed |= access::IBV_ACCESS_REMOTE_ATOMIC;
        }
        let last = match self.kind {
            Kind::Connection => {
                to.qp_access_flags = allowed.0;
                mask::IBV_QP_ACCESS_FLAGS
            }
            Kind::Datagrams { key } => {
                to.qkey = key;
                mask::IBV_QP_QKEY
            }
        };
        self.modify(to, mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | last)
    }

    /// Makes a queue pair for datagrams send and receive.
    fn begin(&mut self) -> Result<(), VerbsError> {
        use sys::ibv_qp_attr_mask as mask;
        // SAFETY: all zeros are valid: the fields are numbers.
        let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
        to.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
        self.modify(to, mask::IBV_QP_STATE)?;
        // SAFETY: as above.
        let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
        to.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
        to.sq_psn = self.sequence;
        self.modify(to, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN)
    }

    /// Returns the path to the other end.
    fn path(&self, other: &Place) -> sys::ibv_ah_attr {
        let port = self.domain.context.port;
        // SAFETY: all zeros are valid: the fields are numbers.
        let mut path: sys::ibv_ah_attr = unsafe { zeroed() };
        path.port_num = port.number;
        path.dlid = other.lid;
        if port.global || other.global {
            path.is_global = 1;
            path.grh.dgid = sys::ibv_gid { raw: other.gid };
            path.grh.sgid_index = port.gid_index;
            path.grh.hop_limit = 64;
        }
        path
    }

    /// Adds another end that datagrams can be sent to: a queue pair of this number and key. Returns
    /// its place.
    pub(super) fn add_peer(&mut self, path: &Place, number: u32, key: u32) -> Result<u32, VerbsError> {
        let mut path = self.path(path);
        // SAFETY: the domain exists, and the attributes are a local variable.
        let handle = NonNull::new(unsafe { sys::ibv_create_ah(self.domain.raw(), &mut path) });
        let handle = handle.ok_or_else(|| refused("make an address handle"))?;
        let peer = Some(Peer { handle, number, key, _domain: self.domain.clone() });
        let place = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        match self.peers.get_mut(place) {
            Some(free) => *free = peer,
            None => self.peers.push(peer),
        }
        Ok(place as u32)
    }

    /// Removes another end that no work request under way names.
    pub(super) fn remove_peer(&mut self, place: u32) {
        if let Some(peer) = self.peers.get_mut(place as usize) {
            *peer = None;
        }
    }

    /// Whether to treat a datagram as lost, because a test wants that.
    pub(super) fn loses(&self, received: u64) -> bool {
        self.domain.context.lose_every.is_some_and(|every| received.is_multiple_of(u64::from(every.get())))
    }

    /// Connects the queue pair to the one at the other end.
    pub(super) fn connect(&mut self, other: &Place) -> Result<(), VerbsError> {
        use sys::ibv_qp_attr_mask as mask;
        let port = self.domain.context.port;
        // SAFETY: all zeros are valid: the fields are numbers.
        let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
        to.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
        to.path_mtu = port.mtu.min(other.mtu);
        to.dest_qp_num = other.number;
        to.rq_psn = other.sequence;
        to.max_dest_rd_atomic = self.domain.context.reads_in;
        to.min_rnr_timer = 12; // 0.64 ms
        to.ah_attr = self.path(other);
        let path = mask::IBV_QP_STATE | mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU;
        let from = mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN;
        self.modify(to, path | from | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER)?;
        // SAFETY: all zeros are valid: the fields are numbers.
        let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
        to.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
        to.sq_psn = self.sequence;
        // The NIC sends again after 67 ms without an acknowledgement, and repeats that. A client
        // that waits for an answer loses patience first.
        to.timeout = 14;
        to.retry_cnt = 7; // Soft-RoCE takes 7 as "without end"
        to.rnr_retry = 7; // 7 means "without end"
        to.max_rd_atomic = self.domain.context.reads_out.min(other.reads_in).max(1);
        let retries = mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY;
        self.modify(to, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN | retries | mask::IBV_QP_MAX_QP_RD_ATOMIC)
    }

    /// Posts work requests, in lists of at most [`LIST_MAX`], with one doorbell each. The caller
    /// makes sure that there is room.
    pub(super) fn post(&mut self, requests: impl Iterator<Item = WorkRequest>) -> io::Result<()> {
        let mut requests = requests.peekable();
        while requests.peek().is_some() {
            self.post_list(&mut requests)?;
        }
        Ok(())
    }

    fn post_list(&mut self, requests: &mut impl Iterator<Item = WorkRequest>) -> io::Result<()> {
        let mut pieces = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; LIST_MAX];
        let mut list = [const { MaybeUninit::<sys::ibv_send_wr>::uninit() }; LIST_MAX];
        let (pieces_at, list_at) = (pieces.as_mut_ptr(), list.as_mut_ptr().cast::<sys::ibv_send_wr>());
        let (mut count, mut signaled) = (0, 0);
        for request in requests.take(LIST_MAX) {
            let memory = self.memories.get(request.memory as usize).ok_or(io::ErrorKind::InvalidInput)?;
            let words = memory.region().words();
            let from = words.get(request.at..).and_then(|rest| rest.get(..request.words));
            let from = from.ok_or(io::ErrorKind::InvalidInput)?;
            let (opcode, atomic, immediate) = opcode(request.operation);
            let writes = matches!(request.operation, Operation::Write | Operation::Message(_) | Operation::Datagram(_));
            let mut flags = 0;
            if request.signaled {
                flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
                signaled += 1;
            }
            if writes && !from.is_empty() && size_of_val(from) <= self.inline_max {
                flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
            }
            let piece =
                sys::ibv_sge { addr: from.as_ptr() as u64, length: size_of_val(from) as u32, lkey: memory.lkey() };
            let wr = match (request.operation, atomic) {
                (Operation::Datagram(peer), _) => {
                    let peer = self.peers.get(peer as usize).and_then(Option::as_ref);
                    let peer = peer.ok_or(io::ErrorKind::InvalidInput)?;
                    let (ah, remote_qpn, remote_qkey) = (peer.handle.as_ptr(), peer.number, peer.key);
                    sys::wr_t { ud: sys::ud_t { ah, remote_qpn, remote_qkey } }
                }
                (_, Some((compare_add, swap))) => {
                    let (remote_addr, rkey) = (request.address, request.key);
                    sys::wr_t { atomic: sys::atomic_t { remote_addr, compare_add, swap, rkey } }
                }
                (_, None) => sys::wr_t { rdma: sys::rdma_t { remote_addr: request.address, rkey: request.key } },
            };
            // SAFETY: `count` is below `LIST_MAX`, so both places are within their arrays. The list
            // is linked below. All zeros are valid for fields that are not set.
            unsafe {
                pieces_at.add(count).write(piece);
                let mut work: sys::ibv_send_wr = zeroed();
                work.sg_list = pieces_at.add(count);
                work.num_sge = i32::from(!from.is_empty());
                work.opcode = opcode;
                work.send_flags = flags;
                work.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
                work.wr = wr;
                work.next = list_at.add(count + 1);
                list_at.add(count).write(work);
            }
            count += 1;
        }
        let Some(last) = count.checked_sub(1) else { return Ok(()) };
        let mut bad = ptr::null_mut();
        // SAFETY: `count` requests are initialized and linked, and the last one ends the list. The
        // requests and their pieces live until the call returns, and the call has copied them by
        // then. The memory that they name is registered with this queue pair's domain, the queue
        // pair keeps it until it is destroyed, and its bounds have been checked.
        let errno = unsafe {
            (*list_at.add(last)).next = ptr::null_mut();
            sys::ibv_post_send(self.raw.as_ptr(), list_at, &mut bad)
        };
        self.domain.counters.sent(count as u64, signaled);
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }

    /// Makes room for more messages of the other end, in lists of at most [`LIST_MAX`] receives.
    pub(super) fn receive(&mut self, receives: impl IntoIterator<Item = Receive>) -> Result<(), VerbsError> {
        let mut receives = receives.into_iter().peekable();
        while receives.peek().is_some() {
            self.receive_list(&mut receives)?;
        }
        Ok(())
    }

    fn receive_list(&mut self, receives: &mut impl Iterator<Item = Receive>) -> Result<(), VerbsError> {
        let refused = |cause| VerbsError::System { what: "post a receive", cause };
        let mut pieces = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; LIST_MAX];
        let mut list = [const { MaybeUninit::<sys::ibv_recv_wr>::uninit() }; LIST_MAX];
        let (pieces_at, list_at) = (pieces.as_mut_ptr(), list.as_mut_ptr().cast::<sys::ibv_recv_wr>());
        let mut count = 0;
        for Receive { memory, at, words } in receives.take(LIST_MAX) {
            let mut piece = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
            if words > 0 {
                let registered = self.memories.get(memory as usize);
                let into = registered.and_then(|memory| memory.region().words().get(at..)?.get(..words));
                let (Some(registered), Some(into)) = (registered, into) else {
                    return Err(refused(io::ErrorKind::InvalidInput.into()));
                };
                let (addr, lkey) = (into.as_ptr() as u64, registered.lkey());
                piece = sys::ibv_sge { addr, length: size_of_val(into) as u32, lkey };
            }
            // SAFETY: `count` is below `LIST_MAX`, so all places are within their arrays. The place
            // behind the last one is only computed. The list is ended below.
            unsafe {
                pieces_at.add(count).write(piece);
                list_at.add(count).write(sys::ibv_recv_wr {
                    wr_id: u64::from(memory) << 32 | at as u64,
                    next: list_at.add(count + 1),
                    sg_list: pieces_at.add(count),
                    num_sge: i32::from(words > 0),
                });
            }
            count += 1;
        }
        let Some(last) = count.checked_sub(1) else { return Ok(()) };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists. `count` receives are initialized and linked, and the last
        // one ends the list. They and their pieces live until the call returns, and the call has
        // copied them by then. They name no memory, or words that are registered with the queue
        // pair's domain and kept by the queue pair.
        let errno = unsafe {
            (*list_at.add(last)).next = ptr::null_mut();
            sys::ibv_post_recv(self.raw.as_ptr(), list_at, &mut bad)
        };
        self.domain.counters.received(count as u64);
        if errno == 0 { Ok(()) } else { Err(refused(SystemError::Number(errno))) }
    }

    /// Returns the next completion. An error ends the queue pair.
    pub(super) fn poll(&mut self) -> io::Result<Option<Completion>> {
        if self.polled_from == self.polled_to {
            self.poll_some()?;
        }
        let next = (self.polled_from < self.polled_to).then(|| self.polled[self.polled_from]);
        self.polled_from += usize::from(next.is_some());
        Ok(next)
    }

    fn poll_some(&mut self) -> io::Result<()> {
        let mut found = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; POLL_MAX];
        let into = found.as_mut_ptr().cast();
        // SAFETY: the completion queue exists, and the array has room for `POLL_MAX` completions.
        let count = unsafe { sys::ibv_poll_cq(self.completions.as_ptr(), POLL_MAX as i32, into) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("a completion queue is broken"))?;
        (self.polled_from, self.polled_to) = (0, 0);
        self.seen |= count > 0;
        for work in &found[..count.min(POLL_MAX)] {
            // SAFETY: the call has filled the first `count`.
            let work = unsafe { work.assume_init_ref() };
            if work.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                tracing::debug!(status = work.status, "a work request failed");
                return Err(io::Error::other(format!("completion error {}", work.status)));
            }
            self.polled[self.polled_to] = match work.opcode {
                sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                    // SAFETY: a completion of this kind has the immediate.
                    Completion::Message(u32::from_be(unsafe { work.imm_data_invalidated_rkey_union.imm_data }))
                }
                sys::ibv_wc_opcode::IBV_WC_RECV if self.kind != Kind::Connection => Completion::Datagram {
                    memory: (work.wr_id >> 32) as u32,
                    at: work.wr_id as u32 as usize,
                    bytes: work.byte_len,
                    from: work.src_qp,
                },
                sys::ibv_wc_opcode::IBV_WC_RECV => return Err(io::ErrorKind::InvalidData.into()),
                _ => Completion::Sent,
            };
            self.polled_to += 1;
        }
        Ok(())
    }

    /// Returns the channel that becomes readable when there is a completion, once it has been
    /// [armed](QueuePair::arm).
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor exist as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Arms the channel to wake for the next completion. Poll once more after this call, because a
    /// completion may have come before it.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        // As long as no completion has been seen, the channel has not woken, or it is readable.
        if self.armed && !self.seen {
            return Ok(());
        }
        self.seen = false;
        if std::mem::take(&mut self.armed) {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel exists and does not block. It has only events of this completion
            // queue, which are acknowledged at once.
            unsafe {
                while sys::ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut context) == 0 {
                    sys::ibv_ack_cq_events(self.completions.as_ptr(), 1);
                }
            }
        }
        // SAFETY: the completion queue exists.
        match unsafe { sys::ibv_req_notify_cq(self.completions.as_ptr(), 0) } {
            0 => {
                self.armed = true;
                Ok(())
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn opcode(operation: Operation) -> (sys::ibv_wr_opcode::Type, Option<(u64, u64)>, u32) {
    use sys::ibv_wr_opcode as code;
    match operation {
        Operation::Read => (code::IBV_WR_RDMA_READ, None, 0),
        Operation::Write => (code::IBV_WR_RDMA_WRITE, None, 0),
        Operation::Message(word) => (code::IBV_WR_RDMA_WRITE_WITH_IMM, None, word),
        Operation::CompareSwap { expected, new } => (code::IBV_WR_ATOMIC_CMP_AND_SWP, Some((expected, new)), 0),
        Operation::Datagram(_) => (code::IBV_WR_SEND, None, 0),
        Operation::FetchAdd(delta) => (code::IBV_WR_ATOMIC_FETCH_AND_ADD, Some((delta, 0)), 0),
    }
}

impl Drop for QueuePair {
    /// Destroys the queue pair. When this has returned, no verb of either end takes effect through
    /// it any more.
    fn drop(&mut self) {
        // SAFETY: no other value has these pointers. The queue pair is destroyed before its
        // completion queue and before its memories, which are fields. Its events have been
        // acknowledged.
        let results = unsafe {
            [
                sys::ibv_destroy_qp(self.raw.as_ptr()),
                sys::ibv_destroy_cq(self.completions.as_ptr()),
                sys::ibv_destroy_comp_channel(self.channel.as_ptr()),
            ]
        };
        if results != [0; 3] {
            tracing::error!(?results, "a queue pair could not be destroyed");
        }
    }
}
