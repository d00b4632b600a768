; Blocks stand on a table or on one another, and a hand holds one at a time.
(define (domain blocks)
  (:requirements :strips :typing)
  (:types block)
  (:predicates
    (on ?upper - block ?lower - block)
    (ontable ?block - block)
    (clear ?block - block)
    (holding ?block - block)
    (handempty))
  (:action pick-up
    :parameters (?block - block)
    :precondition (and (handempty) (clear ?block) (ontable ?block))
    :effect (and (holding ?block) (not (handempty)) (not (clear ?block)) (not (ontable ?block))))
  (:action put-down
    :parameters (?block - block)
    :precondition (holding ?block)
    :effect (and (ontable ?block) (clear ?block) (handempty) (not (holding ?block))))
  (:action stack
    :parameters (?block - block ?lower - block)
    :precondition (and (holding ?block) (clear ?lower))
    :effect (and (on ?block ?lower) (clear ?block) (handempty) (not (holding ?block)) (not (clear ?lower))))
  (:action unstack
    :parameters (?block - block ?lower - block)
    :precondition (and (handempty) (clear ?block) (on ?block ?lower))
    :effect (and (holding ?block) (clear ?lower) (not (handempty)) (not (clear ?block)) (not (on ?block ?lower)))))
