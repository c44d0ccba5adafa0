//! Creating, loading, opening and dropping trees.

use remora_index::IndexError;
use remora_index::btree::{Image, ROOT};
use remora_node::{MemoryError, ReadScheme};
use remora_record::Key;

use super::keys::stored;
use super::load::{Builder, Plan, Row};
use super::options::{Design, OrderedOptions};
use super::partitions::{Partitions, lies_in};
use super::parts::{Form, INNER, LEAVES, VALUES, node_key, part};
use super::tree::Tree;
use crate::cluster::{Cluster, Freed, TableOptions};
use crate::dynamic::{DynSchema, rest_of};
use crate::error::OpenError;
use crate::table::{RawTable, Schema};

impl Cluster {
    /// Creates a tree with rows, which must ascend. There are none if values can have parts.
    pub(super) fn create_tree(
        &self,
        name: &str,
        schema: &DynSchema,
        options: OrderedOptions,
        rows: &mut dyn Iterator<Item = Row>,
    ) -> Result<Tree, OpenError> {
        let form = Form::of(schema, options.keys_first).map_err(|error| error.of_table(name))?;
        if options.rows == 0 {
            return Err(MemoryError::empty("the number of rows of a table").of_table(name).into());
        }
        let announced = rows.size_hint().0 as u64;
        let options =
            if options.grows { OrderedOptions { rows: options.rows.max(announced), ..options } } else { options };
        self.create_together(|cluster| cluster.create_tree_unfinished((name, schema), &form, options, rows))
    }

    fn create_tree_unfinished(
        &self,
        (name, schema): (&str, &DynSchema),
        form: &Form,
        options: OrderedOptions,
        rows: &mut dyn Iterator<Item = Row>,
    ) -> Result<Tree, OpenError> {
        let cuts = cuts(name, schema, form, &options)?;
        let partitions = 1 + cuts.len();
        let node = |node: Option<u16>| TableOptions {
            replicas: options.replicas,
            shards: node.map(|_| partitions as u16),
            first_node: node.unwrap_or(0),
            grows: options.grows,
            ..TableOptions::for_rows(options.rows)
        };
        let (of_leaves, of_inner) = match options.design {
            Design::Fine => (None, None),
            Design::Hybrid(node) => (None, Some(node)),
            Design::Coarse(node) => (Some(node), Some(node)),
        };
        let create = |what, schema: &Schema, parts, rows, at: Option<u16>| {
            let options = TableOptions { rows, read_scheme: Some(ReadScheme::Checksum), parts, ..node(at) };
            self.create_raw(&part(name, what), schema.clone(), options)
        };
        let create_values = |schema| self.create_dyn_parts(&part(name, VALUES), schema, node(of_leaves), options.bytes);
        let values = form.values.as_ref().map(create_values).transpose()?;
        let [inner, leaves] = options.nodes(form);
        let leaves = create(LEAVES, &form.leaves, form.shape.leaf_parts(), leaves, of_leaves)?;
        let inner = create(INNER, &form.inner, None, inner, of_inner)?;
        let (with_leaves, apart) = (of_leaves.is_some(), options.apart);
        let belongs = |level, id, partition: usize| {
            let table = if level == 0 { &leaves } else { &inner };
            let lies_by_range = partitions > 1 && (level > 0 || with_leaves);
            lies_in(table, id, lies_by_range.then_some(partition as u16))
        };
        let plan = Plan { shape: form.shape, apart, cuts: &cuts, with_leaves, belongs: &belongs };
        let unsorted = match &values {
            None => self.load_tree(&leaves, &inner, Builder::new(plan, rows))?,
            Some(values) => {
                // Rows come once: values are loaded first, and their keys kept.
                let mut keys = Vec::new();
                self.load_rows(values.heads().handle(), &mut |take| {
                    for (key, value) in &mut *rows {
                        take(&Key::new(&key).expect("a typed key is a record's"), &value)?;
                        keys.push(key);
                    }
                    Ok(())
                })?;
                let mut rows = keys.into_iter().map(|key| (key, Vec::new()));
                self.load_tree(&leaves, &inner, Builder::new(plan, &mut rows))?
            }
        };
        match unsorted {
            None => Ok(Tree::new(inner, leaves, values, form.shape)),
            Some(key) => Err(unsorted_key(name, &key).into()),
        }
    }

    /// Builds the nodes; the key that is not behind the one before it, if there is one.
    fn load_tree(
        &self,
        leaves: &RawTable,
        inner: &RawTable,
        mut builder: Builder<'_>,
    ) -> Result<Option<Vec<u8>>, OpenError> {
        self.load_nodes(leaves, builder.by_ref())?;
        if builder.unsorted.is_some() {
            return Ok(builder.unsorted);
        }
        let shape = builder.shape();
        let (nodes, partitions) = builder.inner();
        let map = partitions.map(shape)?.map(|map| (ROOT, map));
        self.load_nodes(inner, map.into_iter().chain(nodes))?;
        Ok(None)
    }

    fn load_nodes(&self, table: &RawTable, mut nodes: impl Iterator<Item = (u64, Image)>) -> Result<(), OpenError> {
        self.load_rows(table.handle(), &mut |take| nodes.try_for_each(|(id, image)| take(&node_key(id), &image)))?;
        Ok(())
    }

    /// Opens a tree that exists.
    pub(super) fn open_tree(&self, name: &str, schema: &DynSchema) -> Result<Tree, OpenError> {
        let form_with = |keys_first| Form::of(schema, keys_first).map_err(|error| error.of_table(name));
        let mut form = form_with(None)?;
        let inner = self.open_raw(&part(name, INNER), form.inner)?;
        let leaves = self.open_raw(&part(name, LEAVES), form.leaves)?;
        // The catalog says how the leaves were made.
        let keys_first = leaves.handle().inner.entry().spec.layout.cell_count();
        form = form_with(keys_first.and_then(|entries| u16::try_from(entries).ok()))?;
        let open_values = |schema| self.open_dyn_table(&part(name, VALUES), schema);
        let values = form.values.as_ref().map(open_values).transpose()?;
        Ok(Tree::new(inner, leaves, values, form.shape))
    }

    /// Drops an ordered table, typed or of bytes, with all the tables that it consists of, in one
    /// change of the catalog. Otherwise like [`drop_table`](Cluster::drop_table); errors name the
    /// part that is missing.
    pub fn drop_ordered(&self, name: &str) -> Result<Freed, OpenError> {
        self.drop_together(&self.parts_of_tree(name)?)
    }

    /// The names of the tables that an ordered table consists of.
    fn parts_of_tree(&self, name: &str) -> Result<Vec<String>, OpenError> {
        let values = part(name, VALUES);
        let mut names = vec![part(name, LEAVES), part(name, INNER)];
        for values in [rest_of(&values), values] {
            names.extend(self.existing(values)?);
        }
        Ok(names)
    }

    /// Gives an ordered table, typed or of bytes, another name, with all the tables that it
    /// consists of, in one change of the catalog. Otherwise like
    /// [`rename_table`](Cluster::rename_table); errors name the part that is missing.
    pub fn rename_ordered(&self, from: &str, to: &str) -> Result<(), OpenError> {
        self.rename_together(from, to, self.parts_of_tree(from)?)
    }
}

fn unsorted_key(table: &str, key: &[u8]) -> IndexError {
    let key = key.iter().map(|byte| format!("{byte:02x}")).collect();
    IndexError::Unsorted { table: table.to_owned(), key }
}

/// The keys at which a table is to be split, as nodes have keys. Fails if there cannot be such
/// partitions.
fn cuts(name: &str, schema: &DynSchema, form: &Form, options: &OrderedOptions) -> Result<Vec<Vec<u8>>, OpenError> {
    let (lengths, shape) = (schema.keys(), form.shape);
    let count = options.split_at.len() + 1;
    if count > 1 && options.design == Design::Fine {
        let what = "the number of partitions of an ordered table whose nodes are spread (Design::Fine)";
        return Err(MemoryError::limit(what, count as u64, 1).of_table(name).into());
    }
    let mut starts = vec![(shape.least(), ROOT)];
    for key in &options.split_at {
        if !lengths.admits(key.len()) || key.is_empty() {
            let (table, what, expected) = (name.to_owned(), "a key to split at", lengths.max());
            return Err(IndexError::Size { table, what, bytes: key.len(), expected }.into());
        }
        let cut = stored(key, lengths, &shape).bytes().to_vec();
        if starts.last().is_some_and(|(last, _)| *last >= cut) {
            return Err(unsorted_key(name, key).into());
        }
        starts.push((cut, ROOT));
    }
    // Whether there is room for their map.
    let partitions = Partitions::Several { starts, with_leaves: false };
    partitions.map(shape).map_err(|error| error.of_table(name))?;
    let Partitions::Several { starts, .. } = partitions else { return Ok(Vec::new()) };
    Ok(starts.into_iter().skip(1).map(|(low, _)| low).collect())
}
