use std::os::unix::fs::PermissionsExt;

use rustix::io::Errno;

use super::*;

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("remora-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("cluster.key")
    }

    fn names(&self) -> Vec<OsString> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(byte: u8) -> Key {
    Key([byte; KEY_BYTES])
}

fn line(byte: u8) -> String {
    format!("{LINE_TAG}{}\n", format!("{byte:02x}").repeat(KEY_BYTES))
}

/// Replaces a key file at once and as a whole, as an operator should.
fn put(path: &Path, contents: &str) {
    let beside = path.with_extension("put");
    fs::write(&beside, contents).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&beside, path).unwrap();
}

#[test]
fn a_key_file_has_one_line_or_two() {
    let (a, b) = (line(0xa7), line(0x0b));
    let one = Some(Pair::from(key(0xa7)));
    let two = Some(Pair { first: key(0xa7), second: Some(key(0x0b)) });
    for (file, expected) in [
        (a.clone(), one),
        (a.trim_end().to_owned(), one),
        (a.to_uppercase().replace("REMORA-KEY", "remora-key"), one),
        (format!("{a}{b}"), two),
        (format!("{a}{b}").trim_end().to_owned(), two),
        (String::new(), None),
        ("\n".to_owned(), None),
        (format!("{a}\n"), None),
        (format!("\n{a}"), None),
        (format!("{a}\n{b}"), None),
        (format!("{a}{b}\n"), None),
        (format!("{a}{b}{a}"), None),
        (format!("{a}{b}x"), None),
        (format!("{a}{}", &b[..70]), None),
        (format!("{}\n{b}", &a[..70]), None),
        (format!("{a}{}", b.replace("key-1", "key-2")), None),
        (format!("{}{b}", a.replacen('7', "g", 1)), None),
        (format!("{a}{}", b.replace('\n', "0\n")), None),
        (a.replace('\n', "\r\n"), None),
        (a.replace('\n', " "), None),
    ] {
        assert_eq!(parse(file.as_bytes()), expected, "{file:?}");
    }
}

#[test]
fn steps_lead_to_the_new_key_and_keep_the_file_whole() {
    let folder = Folder::new("key-steps");
    let path = folder.file();
    let held = || Keys::read(&path).unwrap().now();
    let old = Key::generate().unwrap();
    old.write_new(&path).unwrap();
    let step = |step| Keys::step(&path, step);
    // An existing key stays, and nothing is left of the key that was to replace it.
    let again = Key::generate().unwrap().write_new(&path);
    assert!(matches!(again, Err(KeyError::File(error)) if error.kind() == io::ErrorKind::AlreadyExists), "{again:?}");
    assert_eq!(folder.names(), ["cluster.key"]);
    assert_eq!([KeyStep::Swap, KeyStep::Drop].map(step), [Err(KeyError::One); 2]);
    assert_eq!(held(), old.into());
    step(KeyStep::Add).unwrap();
    let Pair { first, second: Some(new) } = held() else { panic!("no second key") };
    assert!(first == old && new != old);
    assert_eq!(step(KeyStep::Add), Err(KeyError::Two));
    step(KeyStep::Swap).unwrap();
    assert_eq!(held(), Pair { first: new, second: Some(old) });
    step(KeyStep::Drop).unwrap();
    assert_eq!(held(), new.into());
    assert_eq!(folder.names(), ["cluster.key"], "nothing is left beside it");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

    // The link stays, and its target takes the step.
    let link = folder.0.join("link");
    std::os::unix::fs::symlink("cluster.key", &link).unwrap();
    Keys::step(&link, KeyStep::Add).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && held().second.is_some());
    assert_eq!(Keys::step(&folder.0.join("none"), KeyStep::Add), Err(KeyError::File(Errno::NOENT.into())));
}

#[test]
fn a_step_waits_for_no_dead_process_and_does_not_disturb_a_living_one() {
    let folder = Folder::new("key-left");
    let (path, beside) = (folder.file(), folder.0.join("cluster.key.new"));
    put(&path, &line(1));
    let held = || Keys::read(&path).unwrap().now();
    let living = create(&beside).unwrap();
    living.lock().unwrap();
    assert_eq!(Keys::step(&path, KeyStep::Add), Err(KeyError::Busy));
    assert!(is_at(&living, &beside) && held() == key(1).into());
    // A process may be killed at any time: before it wrote, while it did, and before the new file
    // took its place.
    drop(living);
    for left in [String::new(), line(1)[..20].to_owned(), [line(1), line(9)].concat()] {
        put(&path, &line(1));
        fs::write(&beside, left).unwrap();
        // A file that another user could read does not become the key file.
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o644)).unwrap();
        Keys::step(&path, KeyStep::Add).unwrap();
        assert!(held().second.is_some_and(|second| second != key(9)));
        assert_eq!(folder.names(), ["cluster.key"]);
    }
    // A file at the path that no step has left stays where it is.
    std::os::unix::fs::symlink("cluster.key", &beside).unwrap();
    assert_eq!(Keys::step(&path, KeyStep::Swap), Err(KeyError::File(Errno::LOOP.into())));
    assert!(fs::symlink_metadata(&beside).unwrap().is_symlink());
}

/// Each step starts from the result of the one before. If several processes begin a step at once,
/// all but one are refused, or they follow one after the other.
#[test]
fn steps_at_once_come_one_after_the_other() {
    let folder = Folder::new("key-race");
    let path = folder.file();
    for _ in 0..50 {
        put(&path, &line(1));
        fs::write(folder.0.join("cluster.key.new"), "").unwrap();
        let step = || Keys::step(&path, KeyStep::Add);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(step)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let refused = |outcome: &Result<(), KeyError>| matches!(outcome, Ok(()) | Err(KeyError::Busy | KeyError::Two));
        assert!(done <= 1 && outcomes.iter().all(refused), "{outcomes:?}");
        // If each was in the way of another, none has taken the step, and the next one can.
        assert_eq!(step(), if done == 1 { Err(KeyError::Two) } else { Ok(()) });
        assert_eq!(folder.names(), ["cluster.key"]);
    }
}

#[test]
fn a_file_that_is_good_is_read_again_and_another_changes_nothing() {
    let folder = Folder::new("key-again");
    let path = folder.file();
    put(&path, &line(1));
    let keys = Keys::read(&path).unwrap();
    let (clone, complaint) = (keys.clone(), || keys.0.lock().unwrap().file.as_ref().unwrap().complaint);
    assert_eq!((keys.now(), complaint()), (key(1).into(), None));
    let two = Pair { first: key(1), second: Some(key(2)) };
    put(&path, &[line(1), line(2)].concat());
    assert_eq!((clone.now(), keys.now()), (two, two));

    put(&path, "rubbish");
    assert_eq!((keys.now(), complaint()), (two, Some(KeyError::Format)));
    fs::remove_file(&path).unwrap();
    assert_eq!((keys.now(), complaint()), (two, Some(KeyError::File(Errno::NOENT.into()))));
    fs::create_dir(&path).unwrap();
    assert_eq!((keys.now(), complaint()), (two, Some(KeyError::Format)));
    fs::remove_dir(&path).unwrap();
    put(&path, &line(3));
    // Only the mode differs before and after.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!((keys.now(), complaint()), (two, Some(KeyError::Exposed { mode: 0o604 })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!((keys.now(), complaint()), (key(3).into(), None));
    std::thread::sleep(std::time::Duration::from_millis(50)); // more than file systems take for one time
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!((keys.now(), complaint()), (key(3).into(), Some(KeyError::Exposed { mode: 0o620 })));

    assert_eq!(Keys::from(key(4)).now(), key(4).into());
    assert_eq!(format!("{:?} {:?} {:?}", key(0x77), keys, Pair::from(key(0x77))).matches('7').count(), 0);
}
