use super::{Chain, Judgement};
use crate::observation::{Frame, Observation};
use std::sync::Arc;

const PRINTED: &str = r#"words before
{"executable":"p","late_from_ns":10,"late_until_ns":20,"late_cpu_ns":5,"root":{"file":"p","address":256},
"frames":[{"function":"spin","file":"","address":0},{"function":"inner","file":"p","address":512},
{"function":"main","file":"p","address":768},{"function":"","file":"libc.so.6","address":4096}]}"#;

/// Frames as `file:address:name`, leaf first; an address of a marker is 0.
fn sample(frames: &str) -> Observation {
    let frame = |text: &str| {
        let mut parts = text.split(':');
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let (path, address, name) = (part(), part(), part());
        let kind = if name.starts_with('[') { "abort-marker" } else { "native" };
        let functions = if name.is_empty() { Vec::new() } else { vec![name] };
        let address = address.parse().unwrap_or_default();
        let (kind, file, build_id) = (kind.to_owned(), path.clone(), String::new());
        Arc::new(Frame { kind, file, path, build_id, address, functions })
    };
    Observation {
        time_ns: 15,
        pid: 1,
        executable: "p".to_owned(),
        executable_path: String::new(),
        service: String::new(),
        host: String::new(),
        frames: frames.split_whitespace().map(frame).collect(),
    }
}

#[test]
fn stacks_are_held_against_the_truth() {
    let chain =
        Chain::parse(&PRINTED.replace('\n', " ").replace("words before ", "words before\n"));
    let check = |frames: &str, is: [bool; 3], names: [usize; 3], true_frames| {
        let judgement = chain.judge(&sample(frames), 1);
        let depth = frames.split_whitespace().filter(|frame| !frame.contains('[')).count();
        let ([in_leaf, under_callers, complete], [nameable, named, misnamed]) = (is, names);
        let wanted = Judgement {
            in_leaf,
            under_callers,
            complete,
            nameable,
            named,
            misnamed,
            depth,
            true_frames,
        };
        assert_eq!(judgement, wanted, "{frames}");
    };
    let all = [true; 3];
    let callers = "p:512:inner p:768:main libc.so.6:4096";
    check(&format!("p:99:spin {callers} libc.so.6:5000 p:260:_start"), all, [3, 3, 0], 4);
    // Return addresses one byte earlier.
    check("p:99:spin p:511:inner p:767:main libc.so.6:4095 p:255", all, [3, 3, 0], 4);
    // In the vDSO, and in the loop's own clock.
    check(&format!("vdso:9:spin {callers} p:260"), all, [3, 3, 0], 4);
    check(&format!("vdso:9 libc.so.6:7 {callers} p:260"), all, [2, 2, 0], 3);
    check("p:515:inner p:768:main libc.so.6:4096 p:260", [false, true, true], [1, 1, 0], 2);
    // A neighbour's name, no name, no root, a marker, a caller left out.
    check(&format!("p:99:spam {callers} p:260"), all, [3, 2, 1], 4);
    check("p:99: p:512:inner p:768:main libc.so.6:4096 p:260", all, [3, 2, 0], 4);
    check(&format!("p:99:spin {callers}"), [true, true, false], [3, 3, 0], 4);
    check(&format!("p:99:spin {callers} p:400"), [true, true, false], [3, 3, 0], 4);
    check("p:99:spin p:512:inner :0:[unwind:...]", [true, false, false], [2, 2, 0], 2);
    check("p:99:spin p:768:main libc.so.6:4096 p:260", [false; 3], [0, 0, 0], 0);
    check("p:99:spin p:512:inner libc.so.6:4096 p:260", [true, false, false], [2, 2, 0], 2);
    check(&format!("q:1 q:2 q:3 {callers} p:260"), [false, true, true], [1, 1, 0], 2);
    check("q:1 q:2 libc.so.6:4096 p:260", [false, true, true], [0, 0, 0], 1);
    check("q:1:other", [false; 3], [0, 0, 0], 0);
}

#[test]
fn the_middle_may_be_cut_out() {
    let chain = Chain::parse(
        PRINTED.rsplit_once("before\n").expect("two lines").1.replace('\n', " ").as_str(),
    );
    let check = |frames: &str, is: bool| {
        assert_eq!(chain.is_truncated(&sample(frames), "[truncated]"), is, "{frames}");
    };
    check("p:99:spin p:512:inner :0:[truncated] libc.so.6:4096 p:260", true);
    check("p:99:spin p:512:inner :0:[truncated] p:768:main libc.so.6:4096 p:260", true);
    check("p:99:spin p:512:inner :0:[truncated] p:768:main libc.so.6:4096", false);
    check("p:99:spin p:512:inner :0:[truncated] p:769:main libc.so.6:4096 p:260", false);
    check("p:99:spin p:512:inner :0:[truncated]", false);
    check("p:99:spin p:512:inner p:768:main libc.so.6:4096 p:260", false);
    check("p:99:spin p:513:inner :0:[truncated] libc.so.6:4096 p:260", false);
}
