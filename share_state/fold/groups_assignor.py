"""How many partitions Kafka's own share assignor gives to each member of a group that subscribes to the same topics."""

import math


def sharing(members: int, partitions: int) -> int:
    """How many members read each partition; 0 where there are none.

    Source: Kafka SimpleHomogeneousAssignmentBuilder; KIP-932, SimpleAssignor.
    """
    return (members + partitions - 1) // partitions if partitions else 0


def expected_sizes(members: int, partitions: int) -> list[int]:
    """How many partitions each member gets, in the order in which the coordinator meets them.

    Computed in doubles as Kafka does: their noise can give the last member one more than the sum allows.

    Source: Kafka SimpleHomogeneousAssignmentBuilder.
    """
    if not members or not partitions:
        return [0] * members
    precise = sharing(members, partitions) * float(partitions) / members
    return [math.ceil(precise * (place + 1)) - math.ceil(precise * place) for place in range(members)]
