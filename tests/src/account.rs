//! The accounts that the agent sends with its windows, straight from the tables of OTLP.

use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::any_value::Value;
use proto::otlp::profiles::ProfilesDictionary;
use std::collections::BTreeMap;

/// The account of one window.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Unix nanoseconds of the window's start.
    pub start_ns: u64,
    /// Length of the window, nanoseconds.
    pub duration_ns: u64,
    /// `vesta.ledger.<name>`.
    pub figures: BTreeMap<String, u64>,
    /// `vesta.process_ledger.<name>` of each process that has any.
    pub processes: Vec<BTreeMap<String, u64>>,
}

impl Account {
    /// A figure; one that is not there is 0.
    #[must_use]
    pub fn of(&self, figure: &str) -> u64 {
        self.figures.get(figure).copied().unwrap_or(0)
    }

    /// Sum of the figures whose name begins so.
    #[must_use]
    pub fn sum_of(&self, prefix: &str) -> u64 {
        let figures = self.figures.iter().filter(|(name, _)| name.starts_with(prefix));
        figures.map(|(_, value)| value).sum()
    }
}

/// The accounts of all windows in the requests, in the order of time.
///
/// # Panics
/// If a request is not OTLP.
#[must_use]
pub fn accounts(requests: &[Vec<u8>]) -> Vec<Account> {
    let mut accounts: BTreeMap<u64, Account> = BTreeMap::new();
    for bytes in requests {
        let request = ExportProfilesServiceRequest::decode(&bytes[..]).expect("OTLP");
        let dictionary = request.dictionary.as_ref().expect("a request has a dictionary");
        let scopes = request.resource_profiles.iter().flat_map(|it| &it.scope_profiles);
        for profile in scopes.flat_map(|scope| &scope.profiles) {
            let account = accounts.entry(profile.time_unix_nano).or_default();
            account.start_ns = profile.time_unix_nano;
            account.duration_ns = profile.duration_nano;
            let mut of_process = BTreeMap::new();
            for (key, value) in int_attributes(dictionary, &profile.attribute_indices) {
                let value = u64::try_from(value).expect("a count");
                if let Some(name) = key.strip_prefix("vesta.ledger.") {
                    account.figures.insert(name.to_owned(), value);
                } else if let Some(name) = key.strip_prefix("vesta.process_ledger.") {
                    of_process.insert(name.to_owned(), value);
                }
            }
            if !of_process.is_empty() {
                account.processes.push(of_process);
            }
        }
    }
    accounts.into_values().collect()
}

/// Attributes whose value is a number.
fn int_attributes<'a>(
    dictionary: &'a ProfilesDictionary,
    indices: &'a [i32],
) -> impl Iterator<Item = (&'a str, i64)> {
    let at = |index: i32| usize::try_from(index).expect("an index is not negative");
    indices.iter().filter_map(move |&index| {
        let attribute = &dictionary.attribute_table[at(index)];
        match attribute.value.as_ref()?.value.as_ref()? {
            Value::IntValue(value) => {
                Some((dictionary.string_table[at(attribute.key_strindex)].as_str(), *value))
            }
            _ => None,
        }
    })
}
