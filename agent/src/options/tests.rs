use super::*;

fn parse(line: &str) -> Result<Command, String> {
    let words = std::iter::once("vesta-agent").chain(line.split_whitespace());
    CommandLine::try_parse_from(words).map(|line| line.command).map_err(|error| error.to_string())
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory as _;
    CommandLine::command().debug_assert();
}

#[test]
fn a_command_follows_two_dashes() {
    let Ok(Command::Record(options)) = parse("record -o x.pb.gz --frequency 99 -- ls -l --pid")
    else {
        panic!("record with a command")
    };
    assert_eq!(options.command, ["ls", "-l", "--pid"]);
    assert_eq!(options.sampling.frequency_hz, 99);
    assert_eq!(options.duration, None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (line, reason) in [
        ("run", "--collector"),
        ("run --collector http://a --frequency 0", "0 is not in 1..=999"),
        ("run --collector http://a --frequency 1000", "1000 is not in 1..=999"),
        ("run --collector http://a --metrics 0.0.0.0:9", "loopback only"),
        ("run --collector http://a --metrics 9464", "looks like 127.0.0.1:9464"),
        ("record", "--output"),
        ("record -o x --pid 1 -- ls", "cannot be used with"),
        ("record -o x --duration 10", "looks like 500ms"),
        ("record -o x --duration 0s", "more than 0"),
        ("record -o x --duration 99999h", "more than 0 and at most"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.contains(reason), "{line}: {error}");
    }
}

#[test]
fn durations_have_units() {
    for (text, ms) in [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("1h", 3_600_000)] {
        assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
    }
}

#[test]
fn the_ending_picks_the_format() {
    for (path, format) in [
        ("a/cpu.pb.gz", Some(Format::Pprof)),
        ("x.folded", Some(Format::Folded)),
        ("x.otlp", Some(Format::Otlp)),
        (".folded", None),
        ("x.gz", None),
        ("-", None),
    ] {
        assert_eq!(Format::of_path(path.as_ref()), format, "{path}");
    }
}
