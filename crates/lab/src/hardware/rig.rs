//! A rig for bare rounds on a simulated cluster: clients that keep the cluster busy, and what they
//! count meanwhile.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use remora_fabric::sim::{Deployment, Driven, Ended, Sim, SimError, SimOptions};
use remora_fabric::{
    Address, ClientId, Fabric as _, FabricError, Handler, Host, LINE_BYTES, Lane, Nanos, NodeId, Prng, RegionId, Round,
    Worker,
};

use super::CalibrationError;

/// The bytes of each memory node: enough that random addresses rarely coincide.
pub(crate) const NODE_BYTES: u64 = 4 << 20;

/// A cluster, its clients, and the time for which they are measured.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    /// Hardware, deployment and seed.
    pub(crate) sim: SimOptions,
    /// The number of memory nodes.
    pub(crate) nodes: u16,
    /// The number of client machines. In a symmetric cluster they are the memory nodes.
    pub(crate) machines: usize,
    /// The number of threads of each machine.
    pub(crate) threads: usize,
    /// The number of coroutines of each thread, divided among its endpoints.
    pub(crate) coroutines: usize,
    /// The number of endpoints of each thread. Each endpoint has its own connection to each node.
    pub(crate) endpoints: usize,
    /// Whether its memory is lines of records, which are read whole.
    pub(crate) records: bool,
    /// CPU time of the memory node for a call, beside receiving and answering it, in nanoseconds.
    pub(crate) work: Nanos,
    /// Virtual time before anything is counted, in nanoseconds.
    pub(crate) warmup: Nanos,
    /// Virtual time that is counted, in nanoseconds.
    pub(crate) measure: Nanos,
}

impl Rig {
    /// Makes a rig of one client and one memory node.
    pub(crate) fn pair(sim: &SimOptions) -> Rig {
        Rig {
            sim: sim.clone(),
            nodes: 1,
            machines: 1,
            threads: 1,
            coroutines: 1,
            endpoints: 1,
            records: false,
            work: 0,
            warmup: 20_000,
            measure: 400_000,
        }
    }

    /// Makes a rig of one memory node and the clients of several machines.
    pub(crate) fn server(sim: &SimOptions, machines: usize, threads: usize, coroutines: usize) -> Rig {
        Rig { machines, threads, coroutines, measure: 100_000, ..Rig::pair(sim) }
    }

    /// Makes a rig of machines, each of which is client and memory node of all.
    pub(crate) fn all_to_all(sim: &SimOptions, machines: u16, threads: usize, coroutines: usize) -> Rig {
        let sim = SimOptions { deployment: Deployment::Symmetric, ..sim.clone() };
        Rig { nodes: machines, measure: 50_000, ..Rig::server(&sim, machines.into(), threads, coroutines) }
    }

    /// Sets the length of a run in microseconds, where rounds take long or are few.
    pub(crate) fn for_us(self, warmup: u64, measure: u64) -> Rig {
        Rig { warmup: warmup * 1_000, measure: measure * 1_000, ..self }
    }

    /// Returns the sum of what `body` counts, in millions per second. Each coroutine runs `body`
    /// again and again.
    pub(crate) fn rate(&self, body: impl AsyncFn(&Client<'_>) -> Result<f64, FabricError>) -> Measured {
        self.rate_over(&[], body)
    }

    /// Returns what [`Rig::rate`] returns. The first memory node begins with these words.
    pub(crate) fn rate_over(
        &self,
        words: &[u64],
        body: impl AsyncFn(&Client<'_>) -> Result<f64, FabricError>,
    ) -> Measured {
        let (total, _) = self.run(words, body)?;
        Ok(total * 1e3 / self.measure as f64)
    }

    /// Returns the mean time of `body`, in microseconds.
    pub(crate) fn time(&self, body: impl AsyncFn(&Client<'_>) -> Result<f64, FabricError>) -> Measured {
        let (_, times) = self.run(&[], body)?;
        let clients = self.machines * self.threads * self.coroutines;
        Ok(clients as f64 * self.measure as f64 / (1e3 * times))
    }

    /// Returns the mean of what `body` returns.
    pub(crate) fn mean(&self, body: impl AsyncFn(&Client<'_>) -> Result<f64, FabricError>) -> Measured {
        let (total, times) = self.run(&[], body)?;
        Ok(total / times)
    }

    /// Returns the sum of what `body` has returned within the measured time, and how often it has
    /// returned.
    fn run(
        &self,
        words: &[u64],
        body: impl AsyncFn(&Client<'_>) -> Result<f64, FabricError>,
    ) -> Result<(f64, f64), CalibrationError> {
        let sim = holding(words, self.nodes, &self.sim)?;
        for node in 0..self.nodes {
            sim.answer(NodeId(node), Box::new(Answering(self.work)));
            if self.records {
                sim.lines_of_records(Address { node: NodeId(node), region: RegionId(0), offset: 0 }, NODE_BYTES);
            }
        }
        let mut workers = Vec::with_capacity(self.machines * self.threads);
        for machine in 0..self.machines {
            sim.place(machine);
            for _ in 0..self.threads {
                workers.push(self.worker(&sim, workers.len())?);
            }
        }
        let from = sim.now() + self.warmup;
        let until = from + self.measure;
        let (total, times) = (Cell::new(0.0), Cell::new(0.0));
        let coroutine = async |lane: &Lane, number: usize| {
            let client = Client { lane, sim: &sim, number, nodes: self.nodes };
            while lane.now() < until {
                let counted = body(&client).await?;
                if (from..until).contains(&lane.now()) {
                    total.set(total.get() + counted);
                    times.set(times.get() + 1.0);
                }
            }
            Ok(())
        };
        let mut runs: Vec<_> = workers
            .iter()
            .enumerate()
            .map(|(thread, (worker, lanes, _))| {
                let first = thread * self.coroutines;
                worker.start(lanes.iter().enumerate().map(|(at, lane)| (lane.id(), coroutine(lane, first + at))))
            })
            .collect();
        let clients = workers.iter().map(|(.., clients)| clients.clone());
        let mut driven: Vec<Driven<'_>> =
            runs.iter_mut().zip(clients).map(|(run, clients)| Driven { clients, run }).collect();
        let ended = sim.run(&mut driven, None);
        drop(driven);
        runs.into_iter().flat_map(remora_fabric::Run::finish).collect::<Result<(), FabricError>>()?;
        match ended {
            Ended::Finished if times.get() > 0.0 => Ok((total.get(), times.get())),
            ended => Err(CalibrationError::Unfinished(ended)),
        }
    }

    /// Makes one thread with its lanes, and returns its clients' ids.
    fn worker(&self, sim: &Sim, thread: usize) -> Result<(Worker, Vec<Lane>, Vec<ClientId>), FabricError> {
        let worker = Worker::new();
        let first = thread * self.endpoints;
        let clients: Vec<ClientId> = (first..first + self.endpoints).map(|number| ClientId(number as u32)).collect();
        let endpoints = clients.iter().map(|client| worker.connect(sim, *client)).collect::<Result<Vec<_>, _>>()?;
        let lanes = (0..self.coroutines).map(|at| {
            let seed = Prng::derive(self.sim.seed, (thread * self.coroutines + at) as u64).next_u64();
            worker
                .lane(&endpoints[at % self.endpoints], seed)
                .expect("rigs have fewer coroutines than a worker's lanes")
        });
        let lanes = lanes.collect();
        Ok((worker, lanes, clients))
    }
}

/// Makes a simulated cluster of memory nodes. The first one begins with these words.
pub(crate) fn holding(words: &[u64], nodes: u16, options: &SimOptions) -> Result<Sim, SimError> {
    let bytes = size_of_val(words).next_multiple_of(LINE_BYTES).max(NODE_BYTES as usize);
    let sim = Sim::new(&vec![vec![bytes]; nodes.into()], options)?;
    if let Some(region) = sim.region(NodeId(0), RegionId(0)) {
        region.words().iter().zip(words).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
    }
    Ok(sim)
}

/// The result of an experiment.
pub(crate) type Measured = Result<f64, CalibrationError>;

/// A handler that answers a call with its first word, after this time. The second word of a call,
/// if there is one, says how many words the answer has.
struct Answering(Nanos);

impl Handler for Answering {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        let words = request.get(1).map_or(1, |words| *words as usize);
        reply.extend(request.first().into_iter().cycle().take(words));
    }

    fn work(&self, _: &[u64]) -> Nanos {
        self.0
    }
}

/// One coroutine of a rig.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) lane: &'a Lane,
    sim: &'a Sim,
    /// The coroutine's number among all coroutines.
    pub(crate) number: usize,
    nodes: u16,
}

impl Client<'_> {
    /// Returns the address at an offset of the first memory node.
    pub(crate) fn at(&self, offset: u64) -> Address {
        Address { node: NodeId(0), region: RegionId(0), offset: offset % NODE_BYTES }
    }

    /// Returns a random address on a random node, aligned to lines and, if `bytes` are more, to a
    /// power of two.
    pub(crate) fn anywhere(&self, bytes: usize) -> Address {
        let unit = (bytes as u64).next_power_of_two().max(64);
        let node = NodeId((self.lane.random() % u64::from(self.nodes)) as u16);
        let offset = self.lane.random() % (NODE_BYTES / unit) * unit;
        Address { node, ..self.at(offset) }
    }

    /// Executes one READ.
    pub(crate) async fn read(&self, bytes: usize) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        round.read(self.anywhere(bytes), bytes);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one WRITE.
    pub(crate) async fn write(&self, bytes: usize) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        write(&mut round, self.anywhere(bytes), bytes);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one CAS.
    pub(crate) async fn swap(&self, at: Address) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        round.compare_swap(at, 0, 1);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one FETCH_ADD.
    pub(crate) async fn add(&self, at: Address) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        round.fetch_add(at, 1);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one call, of one word.
    pub(crate) async fn call(&self) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        round.call(self.anywhere(64).node, &[1], None, 1);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one call that is answered with as many bytes.
    pub(crate) async fn call_for(&self, bytes: usize) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        round.call(self.anywhere(64).node, &[1, (bytes / 8) as u64], None, bytes / 8);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one call that sends as many bytes, and is answered with a word.
    pub(crate) async fn call_with(&self, bytes: usize) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        let body = round.stage_words(bytes / 8);
        round.call(self.anywhere(64).node, &[1, 1], Some(body), 1);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Reads under a shared latch: a FETCH_ADD and the READ in one round, then another FETCH_ADD
    /// that the client does not wait for. Latch and bytes are the client's own; eight bytes between
    /// them and the next client's keep the latches in slots of their own.
    pub(crate) async fn read_latched(&self, bytes: usize) -> Result<f64, FabricError> {
        let at = self.at((self.number * (bytes + 8)) as u64);
        let mut round = self.lane.round();
        round.fetch_add(at, 1);
        round.read(at, bytes);
        self.lane.execute(round).await?;
        let mut round = self.lane.round();
        round.fetch_add(at, 1_u64.wrapping_neg());
        self.lane.post(round);
        Ok(1.0)
    }

    /// Executes a WRITE, and a flush behind it in the same round.
    pub(crate) async fn write_flushed(&self, bytes: usize) -> Result<f64, FabricError> {
        let at = self.anywhere(bytes);
        let mut round = self.lane.round();
        write(&mut round, at, bytes);
        round.flush(at.node);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Executes one round that sends the same number of bytes in each direction.
    pub(crate) async fn ping(&self, bytes: usize) -> Result<f64, FabricError> {
        let mut round = self.lane.round();
        write(&mut round, self.at(0), bytes);
        round.read(self.at(bytes as u64), bytes);
        self.lane.execute(round).await.map(|_| 1.0)
    }

    /// Returns the microseconds from posting a WRITE until a CPU that polls its last word sees it.
    pub(crate) async fn one_way(&self, bytes: usize) -> Result<f64, FabricError> {
        let at = self.anywhere(bytes);
        self.sim.watch(at.plus(bytes as u64 - 8));
        let posted = self.lane.now();
        let mut round = self.lane.round();
        write(&mut round, at, bytes);
        self.lane.execute(round).await?;
        let seen = self.sim.written_at().expect("a WRITE that has completed has written");
        Ok((seen - posted) as f64 / 1e3)
    }

    /// Posts `list` WRITEs with one doorbell, when fewer than `depth` rounds are not completed.
    /// Returns the number of WRITEs.
    pub(crate) async fn stream(&self, bytes: usize, list: usize, depth: u32) -> Result<f64, FabricError> {
        while self.lane.background() >= depth {
            self.lane.sleep(100).await;
        }
        let mut round = self.lane.round();
        let staged = round.stage_words(bytes / 8);
        for at in 0..list {
            round.write_staged(self.at((at * bytes) as u64), staged);
        }
        self.lane.post(round);
        self.lane.yield_now().await;
        Ok(list as f64)
    }
}

fn write(round: &mut Round<'_>, at: Address, bytes: usize) {
    let staged = round.stage_words(bytes / 8);
    round.write_staged(at, staged);
}
