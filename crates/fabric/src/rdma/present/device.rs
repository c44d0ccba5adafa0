//! An open RDMA device, with the port and the address that are used.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys as sys;

use crate::rdma::{Calls, DeviceCounts, DeviceOptions, VerbsError};
use crate::shm::CAPABILITIES;
use crate::transport::{Assumed, Capabilities, Flush};

/// The error number for "no RDMA": the kernel returns `ENOSYS` without RDMA, and the loader returns
/// `EOPNOTSUPP` without libibverbs.
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_GID_TYPE_ROCE_V2` of `ibv_gid_entry`.
const ROCE_V2: u32 = 2;
/// READs and atomics of one queue pair that may be under way at a time, at most.
const READS_MAX: i32 = 16;

/// Returns the error for what the system has just refused.
pub(super) fn refused(what: &'static str) -> VerbsError {
    VerbsError::System { what, cause: io::Error::last_os_error().into() }
}

/// An open RDMA device. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    pub(super) context: Arc<Context>,
}

/// A device's context, with the port that is used.
pub(super) struct Context {
    raw: NonNull<sys::ibv_context>,
    name: String,
    pub(super) port: Port,
    /// Whether the device has 64-bit atomics.
    pub(super) atomics: bool,
    /// READs and atomics of a queue pair that may be under way: as requester here, and as responder
    /// below.
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) work_requests_max: u32,
    /// What the user takes for granted of the device.
    assume: Assumed,
    /// How calls travel, and which datagrams a test loses.
    pub(super) calls: Calls,
    pub(super) lose_every: Option<NonZeroU32>,
    /// The counters of each domain that exists.
    counters: Mutex<Vec<Weak<Counters>>>,
}

/// A port of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) lid: u16,
    /// The longest packet, as the enumeration has it: 1 for 256 bytes, 5 for 4096.
    pub(super) mtu: u32,
    /// Whether packets carry a global address. On Ethernet they always do.
    pub(super) global: bool,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
}

// SAFETY: libibverbs locks what is shared in a context. The pointer is not tied to a thread.
unsafe impl Send for Context {}
// SAFETY: as above. Every function that is called with the context may be called by several threads
// at a time.
unsafe impl Sync for Context {}

impl Device {
    /// Opens a device.
    pub fn open(options: &DeviceOptions) -> Result<Device, VerbsError> {
        let list = List::get()?;
        let names: Vec<String> = list.devices().map(name_of).collect();
        let mut last = VerbsError::NoDevice;
        for (device, name) in list.devices().zip(&names) {
            if options.name.as_ref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            match Context::open(device, name, options) {
                Ok(context) => return Ok(Device { context: Arc::new(context) }),
                Err(error) => last = error,
            }
        }
        match &options.name {
            Some(name) if !names.contains(name) && !names.is_empty() => {
                Err(VerbsError::NoSuchDevice { name: name.clone(), there: names.join(", ") })
            }
            _ => Err(last),
        }
    }

    /// Returns what memory nodes over this device promise.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        if !self.context.atomics {
            return CAPABILITIES; // the CPU executes all verbs
        }
        Capabilities {
            // PCIe promises no more than words, and Soft-RoCE copies bytes.
            atomic_line: self.context.assume.whole_lines,
            // A device would say so by `IBV_ATOMIC_GLOB`. No known device does.
            coherent_atomics: false,
            // InfiniBand promises this of atomics alone.
            atomic_writes: self.context.assume.atomic_writes,
            in_order: false,
            flush: Flush::Visible,
            revoke: true,
            partitions: true,
            node_cpu: true,
        }
    }
}

impl Device {
    /// Returns what the open endpoints and the servers of this device have posted.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        let counters = self.context.counters();
        counters.iter().filter_map(Weak::upgrade).fold(DeviceCounts::default(), |mut sum, one| {
            let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            sum.send_lists += read(&one.send_lists);
            sum.sends += read(&one.sends);
            sum.signaled += read(&one.signaled);
            sum.receive_lists += read(&one.receive_lists);
            sum.receives += read(&one.receives);
            sum
        })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { name, port, atomics, .. } = &*self.context;
        f.debug_struct("Device").field("name", name).field("port", port).field("atomics", atomics).finish()
    }
}

/// The list of all devices of the machine.
struct List {
    raw: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<List, VerbsError> {
        let mut count = 0;
        // SAFETY: the pointer is to a local number.
        let raw = unsafe { sys::ibv_get_device_list(&mut count) };
        match NonNull::new(raw) {
            Some(raw) => Ok(List { raw, count: count.max(0) as usize }),
            None => Err(match io::Error::last_os_error().raw_os_error() {
                Some(ENOSYS) => VerbsError::NoKernel,
                Some(EOPNOTSUPP) => VerbsError::NoLibrary,
                _ => refused("list RDMA devices"),
            }),
        }
    }

    fn devices(&self) -> impl Iterator<Item = *mut sys::ibv_device> + '_ {
        // SAFETY: the list has `count` entries, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.count) }.iter().copied()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list`, and no reference to it is left. Open
        // devices stay open.
        unsafe { sys::ibv_free_device_list(self.raw.as_ptr()) };
    }
}

fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: the device is from a list that still exists. The name is a string of the library,
    // which lives as long.
    unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

impl Context {
    fn open(device: *mut sys::ibv_device, name: &str, options: &DeviceOptions) -> Result<Context, VerbsError> {
        // SAFETY: the device is from a list that still exists.
        let raw = NonNull::new(unsafe { sys::ibv_open_device(device) }).ok_or_else(|| refused("open the device"))?;
        let mut context = Context {
            raw,
            name: name.to_owned(),
            port: Port { number: 0, lid: 0, mtu: 0, global: false, gid_index: 0, gid: [0; 16] },
            atomics: false,
            reads_out: 1,
            reads_in: 1,
            work_requests_max: 0,
            calls: options.calls,
            assume: options.assume,
            lose_every: options.lose_every,
            counters: Mutex::default(),
        };
        let mut attributes = MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is open. The attributes are a local variable of plain integers, for
        // which all zeros are valid.
        let attributes = unsafe {
            if sys::ibv_query_device(raw.as_ptr(), attributes.as_mut_ptr()) != 0 {
                return Err(refused("ask the device what it can do"));
            }
            attributes.assume_init()
        };
        let atomics = attributes.atomic_cap != sys::ibv_atomic_cap::IBV_ATOMIC_NONE;
        context.atomics = atomics && !options.messages_only;
        context.reads_out = attributes.max_qp_init_rd_atom.clamp(1, READS_MAX) as u8;
        context.reads_in = attributes.max_qp_rd_atom.clamp(1, READS_MAX) as u8;
        context.work_requests_max = attributes.max_qp_wr.max(1) as u32;
        context.port = context.choose_port(attributes.phys_port_cnt, options)?;
        if !atomics {
            tracing::warn!(
                device = name,
                "the device has no 64-bit atomics: memory nodes' CPUs execute all verbs; the protocol for that is fasst"
            );
        }
        Ok(context)
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    fn counters(&self) -> MutexGuard<'_, Vec<Weak<Counters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose_port(&self, ports: u8, options: &DeviceOptions) -> Result<Port, VerbsError> {
        for number in options.port.map_or(1..=ports, |port| port..=port) {
            let mut attributes = MaybeUninit::<sys::ibv_port_attr>::zeroed();
            // SAFETY: the context is open. The attributes are a local variable of plain integers,
            // for which all zeros are valid.
            let attributes = unsafe {
                if sys::ibv_query_port(self.raw(), number, attributes.as_mut_ptr()) != 0 {
                    continue;
                }
                attributes.assume_init()
            };
            if attributes.state != sys::ibv_port_state::IBV_PORT_ACTIVE {
                continue;
            }
            let global = attributes.link_layer == ETHERNET || options.gid_index.is_some();
            let (gid_index, gid) = match self.choose_gid(number, attributes.gid_tbl_len, options.gid_index) {
                Some(found) => found,
                None if !global => (0, [0; 16]),
                None => {
                    let (device, index) = (self.name.clone(), options.gid_index);
                    return Err(VerbsError::NoAddress { device, port: number, index });
                }
            };
            return Ok(Port { number, lid: attributes.lid, mtu: attributes.active_mtu, global, gid_index, gid });
        }
        Err(VerbsError::NoPort { device: self.name.clone(), port: options.port })
    }

    /// Chooses the address of a port to use. Returns its index in the port's table, and the
    /// address.
    fn choose_gid(&self, port: u8, count: i32, wanted: Option<u8>) -> Option<(u8, [u8; 16])> {
        let rank = |gid: &[u8; 16], kind: u32| match (kind == ROCE_V2, gid) {
            (true, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]) => 0, // an IPv4 address
            (true, _) => 1,
            (false, _) => 2,
        };
        let indices = wanted.map_or(0..=count.clamp(1, 256) as u32 - 1, |index| u32::from(index)..=u32::from(index));
        let there = indices.filter_map(|index| {
            let mut entry = MaybeUninit::<sys::ibv_gid_entry>::zeroed();
            // SAFETY: the context is open. The entry is a local variable of plain integers, for
            // which all zeros are valid.
            let entry = unsafe {
                if sys::ibv_query_gid_ex(self.raw(), u32::from(port), index, entry.as_mut_ptr(), 0) != 0 {
                    return None;
                }
                entry.assume_init()
            };
            // SAFETY: the union's bytes are all initialized, and any bytes are a valid address.
            let gid = unsafe { entry.gid.raw };
            (gid != [0; 16]).then_some((rank(&gid, entry.gid_type), index as u8, gid))
        });
        there.min_by_key(|(rank, index, _)| (*rank, *index)).map(|(_, index, gid)| (index, gid))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all objects that were made from this context have an `Arc` of it, so none is
        // left.
        if unsafe { sys::ibv_close_device(self.raw()) } != 0 {
            tracing::error!(device = self.name, "an RDMA device could not be closed");
        }
    }
}

/// A protection domain: it joins the queue pairs and the memory of one owner.
pub(super) struct Domain {
    raw: NonNull<sys::ibv_pd>,
    pub(super) context: Arc<Context>,
    pub(super) counters: Arc<Counters>,
}

/// What the queue pairs of a domain have posted; see [`DeviceCounts`]. They have one user at a
/// time, so no locked instruction is needed, and each domain has cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Counters {
    send_lists: AtomicU64,
    sends: AtomicU64,
    signaled: AtomicU64,
    receive_lists: AtomicU64,
    receives: AtomicU64,
}

impl Counters {
    /// Counts a list of work requests, of which some are signalled.
    pub(super) fn sent(&self, requests: u64, signaled: u64) {
        count(&self.send_lists, 1);
        count(&self.sends, requests);
        count(&self.signaled, signaled);
    }

    /// Counts a list of receives.
    pub(super) fn received(&self, receives: u64) {
        count(&self.receive_lists, 1);
        count(&self.receives, receives);
    }
}

fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

// SAFETY: as for the context that the domain belongs to.
unsafe impl Send for Domain {}
// SAFETY: as for the context that the domain belongs to.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(device: &Device) -> Result<Arc<Domain>, VerbsError> {
        let context = device.context.clone();
        // SAFETY: the context is open, and the domain keeps it so.
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(context.raw()) });
        let raw = raw.ok_or_else(|| refused("make a protection domain"))?;
        let counters = Arc::new(Counters::default());
        let mut all = context.counters();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&counters));
        drop(all);
        Ok(Arc::new(Domain { raw, context, counters }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all objects that were made from this domain have an `Arc` of it, so none is left.
        if unsafe { sys::ibv_dealloc_pd(self.raw()) } != 0 {
            tracing::error!("a protection domain could not be given back");
        }
    }
}
