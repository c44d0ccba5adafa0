//! How much memory this process may still take, and which limit sets that amount.
//!
//! A process may not have all of a machine's free memory. A container has a limit of its own, and
//! the system kills a process that exceeds it. Every control group (cgroup) around the process has
//! one, too. A process also has resource limits. [`Headroom::now`] returns the least amount that
//! any of these limits leaves. Other processes may take memory a moment later. So a memory node
//! takes all the memory that it promises at once ([`Region::take`](crate::Region::take)).

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The memory that this process may still take, and the limit that sets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headroom {
    /// The amount in bytes. It is more than any machine has if no limit is known.
    pub bytes: u64,
    /// The limit that leaves the least.
    pub limit: MemoryLimit,
}

/// A limit that keeps a process from taking more memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryLimit {
    /// The machine's free memory.
    Machine,
    /// The memory limit of the control group whose folder this is, less the memory that the group
    /// uses.
    Group(PathBuf),
    /// The size of the process's address space, `ulimit -v`.
    AddressSpace,
    /// The size of the process's data, `ulimit -d`.
    Data,
    /// The free space of the file system that this file is in.
    FileSystem(PathBuf),
    /// The size of files that the process writes, `ulimit -f`.
    FileSize,
}

impl Headroom {
    /// Returns what this process may take now.
    #[must_use]
    pub fn now() -> Headroom {
        let read = |name: &str| fs::read_to_string(Path::new("/proc").join(name)).unwrap_or_default();
        let machine = free_of_machine(&read("meminfo")).map(|bytes| Headroom { bytes, limit: MemoryLimit::Machine });
        let groups = groups(&read("self/cgroup"), &read("self/mountinfo"));
        let groups = groups.into_iter().filter_map(|group| {
            let bytes = left_in_group(&group)?;
            Some(Headroom { bytes, limit: MemoryLimit::Group(group) })
        });
        let page = rustix::param::page_size() as u64;
        let used = read("self/statm");
        let used = |field| {
            let pages = used.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
            pages.unwrap_or(0).saturating_mul(page)
        };
        let resources = [
            (Resource::As, MemoryLimit::AddressSpace, used(0)),
            // The sixth number of statm is data and stack.
            (Resource::Data, MemoryLimit::Data, used(5)),
        ];
        let resources = resources.into_iter().filter_map(|(resource, limit, used)| {
            let bytes = getrlimit(resource).current?.saturating_sub(used);
            Some(Headroom { bytes, limit })
        });
        let all = machine.into_iter().chain(groups).chain(resources);
        all.min_by_key(|one| one.bytes).unwrap_or(Headroom { bytes: u64::MAX, limit: MemoryLimit::Machine })
    }

    /// Returns the longest that a file of this process may become.
    pub(crate) fn of_a_file() -> Headroom {
        Headroom { bytes: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX), limit: MemoryLimit::FileSize }
    }
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.bytes >> 20;
        match &self.limit {
            MemoryLimit::Machine => write!(f, "this machine has {mib} MiB to give"),
            MemoryLimit::Group(group) => write!(f, "the control group {} has {mib} MiB left", group.display()),
            MemoryLimit::AddressSpace => write!(f, "ulimit -v leaves {mib} MiB"),
            MemoryLimit::Data => write!(f, "ulimit -d leaves {mib} MiB"),
            MemoryLimit::FileSystem(file) => write!(f, "{mib} MiB are free where {} is", file.display()),
            MemoryLimit::FileSize => write!(f, "ulimit -f allows {mib} MiB for a file"),
        }
    }
}

/// Returns the memory that the machine can give without swapping, from the text of `/proc/meminfo`.
fn free_of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the folders of the control groups that limit a process's memory: the process's own group
/// first, then the groups around it. It takes them from the texts of `/proc/self/cgroup` and
/// `/proc/self/mountinfo`. Version 1 of control groups has a hierarchy for memory alone, version 2
/// has one for all resources.
fn groups(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let own = |wanted: &str| {
        cgroup.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|controller| controller == wanted).then_some(path)
        })
    };
    let mut groups = Vec::new();
    for mount in mountinfo.lines() {
        let Some((before, after)) = mount.split_once(" - ") else { continue };
        let (before, after): (Vec<_>, Vec<_>) = (before.split(' ').collect(), after.split(' ').collect());
        let (&[_, _, _, root, at, ..], &[kind, _, options, ..]) = (&*before, &*after) else { continue };
        let path = match kind {
            "cgroup2" => own(""),
            "cgroup" if options.split(',').any(|option| option == "memory") => own("memory"),
            _ => None,
        };
        let Some(path) = path else { continue };
        let (root, at) = (unescaped(root), PathBuf::from(unescaped(at)));
        // A container sees only the part of the hierarchy that is mounted in it. It may be told the
        // path of that part as it is outside.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let is_inside = !below.components().any(|part| part == Component::ParentDir);
        let parts = below.components().filter(|part| is_inside && matches!(part, Component::Normal(_)));
        let own = parts.fold(at.clone(), |own, part| own.join(part));
        groups.extend(own.ancestors().take_while(|group| group.starts_with(&at)).map(Path::to_path_buf));
    }
    groups
}

/// Decodes a path of `mountinfo`, which writes some characters as octal numbers.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (octal, plain)| path.replace(octal, plain))
}

/// Returns what a control group leaves of its limits, from the files in its folder. Cached files do
/// not count as used, because the system gives them up before it kills a process. `None` if the
/// group has no limit.
fn left_in_group(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limits, used, cached) = if group.join("memory.current").exists() {
        (["memory.max", "memory.high"], "memory.current", ["inactive_file", "active_file"])
    } else {
        let limits = ["memory.limit_in_bytes", "memory.limit_in_bytes"];
        (limits, "memory.usage_in_bytes", ["total_inactive_file", "total_active_file"])
    };
    // For "no limit", version 1 writes a number that no machine reaches.
    let limit = limits.into_iter().filter_map(number).min().filter(|limit| *limit < 1 << 60)?;
    let statistics = read("memory.stat").unwrap_or_default();
    let cached = statistics.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        cached.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
    });
    let used = number(used).unwrap_or(0).saturating_sub(cached.sum());
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_limits_this_process() {
        let headroom = Headroom::now();
        assert!((1 << 20..1 << 50).contains(&headroom.bytes), "{headroom:?}");
        assert!(headroom.to_string().contains(" MiB"), "{headroom}");
    }

    #[test]
    fn the_machines_free_memory_is_found() {
        let meminfo = "MemTotal:       16316412 kB\nMemFree:          501480 kB\nMemAvailable:    9211524 kB\n";
        assert_eq!(free_of_machine(meminfo), Some(9_211_524 << 10));
        assert_eq!(free_of_machine("MemTotal:       16316412 kB\n"), None);
    }

    fn paths(cgroup: &str, mountinfo: &str) -> Vec<String> {
        groups(cgroup, mountinfo).iter().map(|group| group.display().to_string()).collect()
    }

    #[test]
    fn all_groups_around_a_process_are_found() {
        let two = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = paths("0::/user.slice/user-0.slice/session-1.scope\n", two);
        let above = ["/user.slice/user-0.slice/session-1.scope", "/user.slice/user-0.slice", "/user.slice", ""];
        assert_eq!(own, above.map(|group| format!("/sys/fs/cgroup{group}")));

        // Version 1, beside an empty hierarchy of version 2.
        let one = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                   35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                   32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                   41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = paths("4:memory:/a/b\n1:cpu:/x\n0::/\n", one);
        let memory = ["/memory/a/b", "/memory/a", "/memory", "/unified"];
        assert_eq!(own, memory.map(|group| format!("/sys/fs/cgroup{group}")));

        // Three containers: one sees the path outside, one has a name space of its own, and one is
        // elsewhere in its name space.
        let mounted = "99 98 0:30 /docker/4f2 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(paths("4:cpuacct,memory:/docker/4f2\n", mounted), ["/sys/fs/cgroup/memory"]);
        assert_eq!(paths("0::/\n", two), ["/sys/fs/cgroup"]);
        assert_eq!(paths("0::/../other\n", two), ["/sys/fs/cgroup"]);
        let odd = "35 24 0:30 / /my\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(paths("0::/a\n", odd), ["/my groups/a", "/my groups"]);
        assert!(paths("", "").is_empty() && paths("0::/a\n", "garbage\n1 2 3 - cgroup2\n").is_empty());
    }

    #[test]
    fn a_group_leaves_what_it_has_not_used() {
        let group = std::env::temp_dir().join(format!("remora-group-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let write = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        assert_eq!(left_in_group(&group), None);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "5000\n");
        assert_eq!(left_in_group(&group), None, "version 1 without a limit");
        write("memory.limit_in_bytes", "10000\n");
        write("memory.stat", "cache 3000\ninactive_file 1\ntotal_inactive_file 700\ntotal_active_file 300\n");
        assert_eq!(left_in_group(&group), Some(10_000 - (5_000 - 1_000)));
        write("memory.max", "max\n");
        write("memory.high", "max\n");
        write("memory.current", "5000\n");
        assert_eq!(left_in_group(&group), None, "version 2 without a limit");
        write("memory.max", "8000\n");
        write("memory.stat", "anon 3000\ninactive_file 600\nactive_file 400\nshmem 9\n");
        assert_eq!(left_in_group(&group), Some(8_000 - (5_000 - 1_000)));
        write("memory.high", "4500\n");
        assert_eq!(left_in_group(&group), Some(500));
        write("memory.current", "99000\n");
        assert_eq!(left_in_group(&group), Some(0));
        fs::remove_dir_all(&group).unwrap();
    }
}
