"""What an operation of a plan does to a tree in memory, beside the executor that writes to Placement."""

from dataclasses import replace

from agent.providers.plan import (
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteInventories,
    DeleteProvider,
    MoveProvider,
    Operation,
    PutAggregates,
    PutInventories,
    PutTraits,
    RenameProvider,
)
from agent.tree import Provider, ProviderTree


def apply_operation(tree: ProviderTree, operation: Operation) -> ProviderTree:
    """The tree after one operation. Raises KeyError or TreeError where it does not fit the tree."""
    match operation:
        case CreateResourceClass() | CreateTrait():
            return tree
        case CreateProvider():
            return tree.with_provider(Provider(operation.provider, operation.name, operation.parent))
        case RenameProvider():
            return tree.with_provider(replace(tree[operation.provider], name=operation.after))
        case MoveProvider():
            return tree.with_provider(replace(tree[operation.provider], parent=operation.after))
        case DeleteProvider():
            tree[
                operation.provider
            ]  # a provider with children cannot leave: the tree lacks their parent then
            return ProviderTree(provider for provider in tree if provider.uuid != operation.provider)
        case PutTraits():
            return tree.with_provider(replace(tree[operation.provider], traits=operation.after))
        case PutAggregates():
            return tree.with_provider(replace(tree[operation.provider], aggregates=operation.after))
        case PutInventories():
            return tree.with_provider(replace(tree[operation.provider], inventories=operation.after))
        case DeleteInventories():
            return tree.with_provider(replace(tree[operation.provider], inventories={}))
